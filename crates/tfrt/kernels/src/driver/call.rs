//! Parses the functions to run from the command line: `f`, or `f(1, 2.5)` with arguments.

use pteron_host::{Function, Module, Value};
use pteron_text::did_you_mean;
use std::str::FromStr;
use std::sync::Arc;

/// A function to run, and its arguments.
pub(super) struct Call {
    pub(super) function: Function,
    pub(super) arguments: Vec<Value>,
}

impl Call {
    /// A call without arguments.
    pub(super) fn without_arguments(function: Function) -> Self {
        Self { function, arguments: Vec::new() }
    }

    /// Finds the function that `text` names, and parses the arguments that follow it.
    ///
    /// # Errors
    /// A message for the user.
    pub(super) fn parse(module: &Arc<Module>, text: &str) -> Result<Self, String> {
        if let Some(function) = module.find(text) {
            return Ok(Self::without_arguments(function));
        }
        let (name, list) = match text.split_once('(') {
            Some((name, rest)) => (name.trim_end(), rest.trim_end().strip_suffix(')')),
            None => (text, Some("")),
        };
        let Some(function) = module.find(name) else {
            let functions: Vec<Function> = module.functions().collect();
            let hint = did_you_mean(name, functions.iter().map(Function::name));
            return Err(format!("couldn't find function {name}{hint}"));
        };
        let Some(list) = list else { return Err(format!("{text}: the arguments end with `)`")) };
        let arguments: Vec<&str> = match list.trim() {
            "" => Vec::new(),
            list => list.split(',').map(str::trim).collect(),
        };
        let arguments =
            parse_arguments(&function, &arguments).map_err(|problem| format!("{text}: {problem}"))?;
        Ok(Self { function, arguments })
    }
}

/// Parses the arguments of a call: values for all arguments, or for all except the chains, which are then supplied.
fn parse_arguments(function: &Function, arguments: &[&str]) -> Result<Vec<Value>, String> {
    let kinds: Vec<Option<&str>> = (0..function.arguments()).map(|i| function.argument_type(i)).collect();
    let is_chain = |kind: &Option<&str>| *kind == Some(CHAIN);
    let chains = kinds.iter().filter(|kind| is_chain(kind)).count();
    let fill_in = arguments.len() + chains == kinds.len();
    if !fill_in && arguments.len() != kinds.len() {
        let kinds: Vec<&str> = kinds.iter().map(|kind| kind.unwrap_or("any")).collect();
        return Err(format!(
            "{} takes ({}), not {} arguments",
            function.name(),
            kinds.join(", "),
            arguments.len()
        ));
    }
    let mut arguments = arguments.iter();
    let values = kinds.iter().enumerate().map(|(i, kind)| {
        if fill_in && is_chain(kind) {
            return Ok(Value::Chain);
        }
        let text = arguments.next().copied().unwrap_or("");
        parse_value(text, *kind).map_err(|problem| format!("argument {i} (`{text}`): {problem}"))
    });
    values.collect()
}

const CHAIN: &str = "!tfrt.chain";

/// Parses one argument. If the program does not record its type, integers are `i32` and other numbers `f32`, unless
/// the text has a type suffix, such as `5:i64`.
fn parse_value(text: &str, recorded: Option<&str>) -> Result<Value, String> {
    let (text, said) = match text.split_once(':') {
        Some((text, kind)) => (text.trim(), Some(kind.trim())),
        None => (text, None),
    };
    let guessed = || match text {
        "true" | "false" => "i1",
        "chain" => CHAIN,
        _ if text.parse::<i64>().is_ok() => "i32",
        _ => "f32",
    };
    let kind = match (said, recorded) {
        (Some(said), Some(recorded)) if said != recorded => {
            return Err(format!("the function takes {recorded}"));
        }
        (said, recorded) => said.or(recorded).unwrap_or_else(guessed),
    };
    match kind {
        CHAIN if matches!(text, "chain" | "") => Ok(Value::Chain),
        "i1" => match text {
            "true" | "1" => Ok(Value::Bool(true)),
            "false" | "0" => Ok(Value::Bool(false)),
            _ => Err("an i1 is `true` or `false`".into()),
        },
        "i8" => parse_number::<i8>(text, kind),
        "i16" => parse_number::<i16>(text, kind),
        "i32" => parse_number::<i32>(text, kind),
        "i64" => parse_number::<i64>(text, kind),
        "ui8" => parse_number::<u8>(text, kind),
        "ui16" => parse_number::<u16>(text, kind),
        "ui32" => parse_number::<u32>(text, kind),
        "ui64" => parse_number::<u64>(text, kind),
        "f32" => parse_number::<f32>(text, kind),
        "f64" => parse_number::<f64>(text, kind),
        _ => Err(format!("values of type {kind} cannot be given as text")),
    }
}

fn parse_number<T: FromStr + Into<Value>>(text: &str, kind: &str) -> Result<Value, String> {
    text.parse::<T>().map(Into::into).map_err(|_| format!("it is no {kind}"))
}

#[cfg(test)]
mod tests {
    use super::parse_value;

    #[test]
    fn arguments_are_parsed_as_their_types() {
        let read = |text, kind| parse_value(text, kind).map(|v| format!("{v:?}"));
        assert_eq!(read("5", Some("i64")).as_deref(), Ok("5i64"));
        assert_eq!(read("-2.5", Some("f32")).as_deref(), Ok("-2.5f32"));
        assert_eq!(read("3", Some("f64")).as_deref(), Ok("3f64"));
        assert_eq!(read("true", Some("i1")).as_deref(), Ok("true"));
        assert_eq!(read("chain", Some("!tfrt.chain")).as_deref(), Ok("Chain"));
        assert_eq!(read("7", None).as_deref(), Ok("7i32"));
        assert_eq!(read("7.0", None).as_deref(), Ok("7f32"));
        assert_eq!(read("7: ui8", None).as_deref(), Ok("7u8"));
        assert!(read("300", Some("ui8")).is_err() && read("x", Some("i32")).is_err());
        assert!(read("1:i64", Some("i32")).is_err() && read("1", Some("!t.tensor")).is_err());
    }
}
