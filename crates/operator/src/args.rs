use crate::{ArgType, Error, Result, Schema, SchemaArg};
use pteron_tensor::{Scalar, ScalarType, TensorMeta, TensorView};
use smallvec::SmallVec;

/// One argument of a call.
#[derive(Debug, Clone)]
pub enum Arg<'a> {
    /// An absent argument.
    None,
    /// An integer, or a scalar type, memory format, layout or device as an integer.
    Int(i64),
    /// A floating-point number.
    Double(f64),
    /// A boolean.
    Bool(bool),
    /// A string.
    Str(&'a str),
    /// A list of integers.
    Ints(SmallVec<[i64; 8]>),
    /// A list of floating-point numbers.
    Doubles(&'a [f64]),
    /// A list of booleans.
    Bools(&'a [bool]),
    /// An input tensor.
    Tensor(TensorView<'a>),
    /// A list of input tensors.
    Tensors(SmallVec<[TensorView<'a>; 4]>),
    /// A list of input tensors, some of which may be absent.
    OptionalTensors(SmallVec<[Option<TensorView<'a>>; 4]>),
    /// A tensor of which only type, sizes and layout are known: at preparation, an out, or a tensor that is not a
    /// constant.
    Spec(&'a TensorMeta),
    /// A value that is not known yet: at preparation, a scalar or list that is computed at run time.
    Unknown,
    /// An output argument: the value is at this position among the outs.
    Out(usize),
    /// An input tensor that occupies exactly the bytes of an out. A kernel receives this only for an argument that it
    /// declares in [`Kernel::in_place`](crate::Kernel::in_place).
    InPlace {
        /// Position among the outs.
        out: usize,
        /// Type, sizes and layout of the argument.
        meta: &'a TensorMeta,
    },
}

impl<'a> Arg<'a> {
    /// The default value of the argument `declared`, parsed from its `text` in the schema; absent if there is no text.
    pub fn of_default(text: Option<&'a str>, declared: &SchemaArg) -> Self {
        match text.unwrap_or("None") {
            "None" => Self::None,
            truth @ ("True" | "False") => Self::Bool(truth == "True"),
            list if list.starts_with('[') => {
                let items = list.trim_matches(['[', ']']).split(',');
                Self::Ints(items.filter_map(|item| item.trim().parse().ok()).collect())
            }
            text => match (text.parse::<i64>(), text.parse::<f64>()) {
                (Ok(v), _) if declared.list => Self::Ints(SmallVec::from_slice(&[v])),
                (Ok(v), _) if declared.ty == ArgType::Float => Self::Double(v as f64),
                (Ok(v), _) => Self::Int(v),
                (_, Ok(v)) => Self::Double(v),
                _ => Self::Str(text.trim_matches(['\'', '"'])),
            },
        }
    }
}

impl Arg<'_> {
    fn kind(&self) -> String {
        match self {
            Self::None => "nothing".into(),
            Self::Int(v) => format!("the integer {v}"),
            Self::Double(v) => format!("the number {v}"),
            Self::Bool(v) => format!("the boolean {v}"),
            Self::Str(v) => format!("the string {v:?}"),
            Self::Ints(v) => format!("the integers {:?}", v.as_slice()),
            Self::Doubles(_) => "a list of numbers".into(),
            Self::Bools(_) => "a list of booleans".into(),
            Self::Tensor(t) => format!("a tensor {}", t.meta()),
            Self::Tensors(_) | Self::OptionalTensors(_) => "a list of tensors".into(),
            Self::Spec(m) => format!("a tensor {m} whose elements are not known yet"),
            Self::Unknown => "a value that is not known yet".into(),
            Self::Out(_) | Self::InPlace { .. } => "an out".into(),
        }
    }
}

/// What identifies an argument: its name in the schema (`args.int("dim")`), its position, or several names of which the
/// schema has one (`args.tensor(["self", "input"])`), for functions that serve several operators.
pub trait ArgKey: Copy {
    /// The position of the argument in the schema; the number of the schema's arguments if the schema has no such name.
    fn position(self, schema: &Schema) -> usize;

    /// The argument's name, for errors.
    fn name(self, schema: &Schema) -> &str;
}

impl ArgKey for usize {
    fn position(self, _: &Schema) -> usize {
        self
    }

    fn name(self, schema: &Schema) -> &str {
        schema.args.get(self).map_or("?", |a| a.name.as_str())
    }
}

impl ArgKey for &'static str {
    fn position(self, schema: &Schema) -> usize {
        schema.args.iter().position(|a| a.name == self).unwrap_or(schema.args.len())
    }

    fn name(self, _: &Schema) -> &str {
        self
    }
}

/// Finds the argument by the first of several names that the schema has, because schemas name it differently.
impl<const N: usize> ArgKey for [&'static str; N] {
    fn position(self, schema: &Schema) -> usize {
        let positions = self.iter().map(|name| name.position(schema));
        positions.into_iter().find(|&position| position < schema.args.len()).unwrap_or(schema.args.len())
    }

    fn name(self, schema: &Schema) -> &str {
        schema.args.get(self.position(schema)).map_or("?", |arg| arg.name.as_str())
    }
}

/// The arguments of a call, in schema order.
///
/// Accessors take an [`ArgKey`]. If an argument has another kind than an accessor expects, the error gives the
/// argument's schema name. An argument that the schema does not have counts as absent.
#[derive(Debug)]
pub struct Args<'a> {
    schema: &'a Schema,
    list: SmallVec<[Arg<'a>; 12]>,
}

macro_rules! optional {
    ($(#[$doc:meta])* $name:ident = $required:ident -> $type:ty) => {
        $(#[$doc])*
        pub fn $name(&self, arg: impl ArgKey) -> Result<Option<$type>> {
            if self.is_none(arg) { Ok(None) } else { self.$required(arg).map(Some) }
        }
    };
}

impl<'a> Args<'a> {
    /// Arguments for a call of the operator with this schema.
    pub fn new(schema: &'a Schema, list: SmallVec<[Arg<'a>; 12]>) -> Self {
        Self { schema, list }
    }

    /// The schema.
    pub fn schema(&self) -> &'a Schema {
        self.schema
    }

    /// The number of arguments.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Whether the call has no arguments.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// The argument with this key; [`Arg::None`] if the call has no such argument.
    pub fn get(&self, arg: impl ArgKey) -> &Arg<'a> {
        self.list.get(arg.position(self.schema)).unwrap_or(&Arg::None)
    }

    /// Whether the argument is absent.
    pub fn is_none(&self, arg: impl ArgKey) -> bool {
        matches!(self.get(arg), Arg::None)
    }

    /// The name of an argument in the schema.
    pub fn name(&self, arg: impl ArgKey) -> &'a str {
        arg.name(self.schema)
    }

    /// The argument as a tensor; fails if it is of another kind.
    pub fn tensor(&self, arg: impl ArgKey) -> Result<TensorView<'a>> {
        match self.get(arg) {
            Arg::Tensor(t) => Ok(*t),
            _ => Err(self.wrong(arg, "a tensor")),
        }
    }

    optional!(
        /// The argument as a tensor; `None` if it is absent.
        optional_tensor = tensor -> TensorView<'a>
    );

    /// Type, sizes and layout of a tensor argument, whether or not its elements are available.
    pub fn meta(&self, arg: impl ArgKey) -> Result<&TensorMeta> {
        match self.get(arg) {
            Arg::Tensor(t) => Ok(t.meta()),
            Arg::Spec(meta) | Arg::InPlace { meta, .. } => Ok(meta),
            _ => Err(self.wrong(arg, "a tensor")),
        }
    }

    /// The argument as a list of tensors; fails if it is of another kind.
    pub fn tensors(&self, arg: impl ArgKey) -> Result<&[TensorView<'a>]> {
        match self.get(arg) {
            Arg::Tensors(list) => Ok(list),
            _ => Err(self.wrong(arg, "a list of tensors")),
        }
    }

    /// The argument as a list of tensors, some of which may be absent.
    pub fn optional_tensors(&self, arg: impl ArgKey) -> Result<SmallVec<[Option<TensorView<'a>>; 4]>> {
        match self.get(arg) {
            Arg::OptionalTensors(list) => Ok(list.clone()),
            Arg::Tensors(list) => Ok(list.iter().copied().map(Some).collect()),
            _ => Err(self.wrong(arg, "a list of tensors")),
        }
    }

    /// The argument as an integer; fails if it is of another kind.
    pub fn int(&self, arg: impl ArgKey) -> Result<i64> {
        match self.get(arg) {
            Arg::Int(v) => Ok(*v),
            _ => Err(self.wrong(arg, "an integer")),
        }
    }

    optional!(
        /// The argument as an integer; `None` if it is absent.
        optional_int = int -> i64
    );

    /// The argument as a floating-point number; an integer is converted.
    pub fn double(&self, arg: impl ArgKey) -> Result<f64> {
        match self.get(arg) {
            Arg::Double(v) => Ok(*v),
            Arg::Int(v) => Ok(*v as f64),
            _ => Err(self.wrong(arg, "a number")),
        }
    }

    optional!(
        /// The argument as a floating-point number; an integer is converted. `None` if it is absent.
        optional_double = double -> f64
    );

    /// The argument as a boolean; the integers 0 and 1 count as booleans.
    pub fn bool(&self, arg: impl ArgKey) -> Result<bool> {
        match self.get(arg) {
            Arg::Bool(v) => Ok(*v),
            Arg::Int(v @ (0 | 1)) => Ok(*v == 1),
            _ => Err(self.wrong(arg, "a boolean")),
        }
    }

    optional!(
        /// The argument as a boolean; the integers 0 and 1 count as booleans. `None` if it is absent.
        optional_bool = bool -> bool
    );

    /// The argument as a scalar: an integer, a floating-point number or a boolean.
    pub fn scalar(&self, arg: impl ArgKey) -> Result<Scalar> {
        match *self.get(arg) {
            Arg::Int(v) => Ok(Scalar::Int(v)),
            Arg::Double(v) => Ok(Scalar::Double(v)),
            Arg::Bool(v) => Ok(Scalar::Bool(v)),
            _ => Err(self.wrong(arg, "a number")),
        }
    }

    optional!(
        /// The argument as a scalar; `None` if it is absent.
        optional_scalar = scalar -> Scalar
    );

    /// The argument as a string; fails if it is of another kind.
    pub fn str(&self, arg: impl ArgKey) -> Result<&'a str> {
        match self.get(arg) {
            Arg::Str(v) => Ok(v),
            _ => Err(self.wrong(arg, "a string")),
        }
    }

    optional!(
        /// The argument as a string; `None` if it is absent.
        optional_str = str -> &'a str
    );

    /// The argument as a list of integers; a single integer counts as a list of one.
    pub fn ints(&self, arg: impl ArgKey) -> Result<&[i64]> {
        match self.get(arg) {
            Arg::Ints(v) => Ok(v),
            Arg::Int(v) => Ok(std::slice::from_ref(v)),
            _ => Err(self.wrong(arg, "a list of integers")),
        }
    }

    /// The argument as a list of integers; `None` if it is absent.
    pub fn optional_ints(&self, arg: impl ArgKey) -> Result<Option<&[i64]>> {
        if self.is_none(arg) { Ok(None) } else { self.ints(arg).map(Some) }
    }

    /// The argument as a list of floating-point numbers; fails if it is of another kind.
    pub fn doubles(&self, arg: impl ArgKey) -> Result<&'a [f64]> {
        match self.get(arg) {
            Arg::Doubles(v) => Ok(v),
            _ => Err(self.wrong(arg, "a list of numbers")),
        }
    }

    optional!(
        /// The argument as a list of floating-point numbers; `None` if it is absent.
        optional_doubles = doubles -> &'a [f64]
    );

    /// The argument as a list of booleans; fails if it is of another kind.
    pub fn bools(&self, arg: impl ArgKey) -> Result<&'a [bool]> {
        match self.get(arg) {
            Arg::Bools(v) => Ok(v),
            _ => Err(self.wrong(arg, "a list of booleans")),
        }
    }

    /// The argument as a scalar type, which programs encode as an integer; `None` if it is absent.
    pub fn optional_dtype(&self, arg: impl ArgKey) -> Result<Option<ScalarType>> {
        match self.optional_int(arg)? {
            None => Ok(None),
            Some(v) => {
                let v = i8::try_from(v).map_err(|_| self.wrong(arg, "a scalar type"))?;
                Ok(Some(ScalarType::from_i8(v)?))
            }
        }
    }

    /// The error for an argument that is not of the expected kind.
    #[cold]
    pub fn wrong(&self, arg: impl ArgKey, expected: &'static str) -> Error {
        Error::ArgumentKind {
            index: arg.position(self.schema),
            name: arg.name(self.schema).to_owned(),
            expected,
            found: self.get(arg).kind(),
        }
    }
}
