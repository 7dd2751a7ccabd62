//! Restores the signedness of integer attributes. BEF has one attribute type for `iN` and `siN`; only the file's table
//! of type names tells which of them the text had. If the table has only one of the two names, all attributes have that
//! type. If it has both, they are assumed to be `iN`.

use crate::ir::{Attribute, Block, Module, Signedness, Type, canonical_int};

/// Changes the types of integer attributes from `iN` to `siN` if the file's type names include `siN` but not `iN`.
pub(super) fn restore_signs(module: &mut Module, types: &[Type]) {
    let named = |width: u32, signedness| types.contains(&Type::Integer { width, signedness });
    let signed = |width: &u32| named(*width, Signedness::Signed) && !named(*width, Signedness::Signless);
    let widths: Vec<u32> = [8, 16, 32, 64].into_iter().filter(signed).collect();
    if !widths.is_empty() {
        make_signed(module.body_mut(), &widths);
    }
}

fn make_signed(block: &mut Block, widths: &[u32]) {
    for op in block.operations.iter_mut().filter(|op| !op.is("builtin.module")) {
        op.attributes.iter_mut().for_each(|(_, value)| make_attribute_signed(value, widths));
        op.regions.iter_mut().flat_map(|r| &mut r.blocks).for_each(|inner| make_signed(inner, widths));
    }
}

fn make_attribute_signed(value: &mut Attribute, widths: &[u32]) {
    match value {
        Attribute::Integer { ty, value } => {
            if let Type::Integer { width, signedness: signedness @ Signedness::Signless } = ty
                && widths.contains(width)
            {
                *signedness = Signedness::Signed;
                *value = canonical_int(ty, *value);
            }
        }
        Attribute::Array(elements) => {
            let mut changed = elements.to_vec();
            changed.iter_mut().for_each(|element| make_attribute_signed(element, widths));
            *value = Attribute::array(changed);
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use crate::{FromBefOptions, Options, PrintOptions, from_bef, parse, print, to_bef};

    fn back(source: &str) -> (String, bool) {
        let to = |text: &str| to_bef(&parse(text, "t").unwrap(), Options::default()).unwrap();
        let bytes = to(source);
        let program = pteron_bef::File::open(&bytes).unwrap().verify().unwrap().to_module().unwrap();
        let options = PrintOptions { locations: true, generic: false };
        let text = print(&from_bef(&program, FromBefOptions::default()).unwrap(), options);
        let same = to(&text) == bytes;
        (text, same)
    }

    #[test]
    fn signed_integers_are_restored_unless_mixed_with_signless_ones() {
        let op = |value: &str| {
            format!("func.func @f() {{\n  \"x.op\"() {{a = {value}}} : () -> ()\n  tfrt.return\n}}\n")
        };
        for value in ["-2 : si16", "[3 : si32, -4 : si32]", "[60000 : ui32, 2 : si16]", "[1 : i8, 2 : si64]"]
        {
            let (text, same) = back(&op(value));
            assert!(same && text.contains(value), "{text}");
        }
        let (text, _) = back(&op("[1 : i8, 2 : si8]"));
        assert!(text.contains("[1 : i8, 2 : i8]"), "{text}");
    }
}
