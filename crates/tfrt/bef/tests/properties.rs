//! Random programs round-trip through bytes.

mod common;

use proptest::prelude::*;
use pteron_bef::{File, FunctionBuilder, Limits, Module, walk};

fn read(bytes: &[u8]) -> Module<'_> {
    let file = File::open(bytes).unwrap_or_else(|error| panic!("{error}"));
    let verified = file.verify().unwrap_or_else(|error| panic!("{error}"));
    verified.to_module().unwrap_or_else(|error| panic!("{error}"))
}

proptest! {
    #[test]
    fn programs_round_trip(module in common::module()) {
        let bytes = module.to_bytes().unwrap();
        let again = read(&bytes);
        prop_assert_eq!(&again, &module);
        prop_assert_eq!(again.to_bytes().unwrap(), bytes);
    }

    #[test]
    fn programs_without_optional_sections_round_trip(mut module in common::module()) {
        module.optional_sections = false;
        let bytes = module.to_bytes().unwrap();
        let again = read(&bytes);
        prop_assert!(!again.optional_sections);
        prop_assert!(again.attributes.untyped().is_some());
        prop_assert_eq!(again.to_bytes().unwrap(), bytes);
    }

    #[test]
    fn untyped_attributes_can_be_added_to(mut module in common::module(), value in common::attribute()) {
        module.optional_sections = false;
        let bytes = module.to_bytes().unwrap();
        let mut module = read(&bytes);
        let mut function = FunctionBuilder::new(&mut module, "added", &[]);
        function.kernel("use").attribute("value", value.clone()).no_results();
        let id = function.finish(&[]).unwrap();
        let bytes = module.to_bytes().unwrap();
        let verified = File::open(&bytes).unwrap().verify().unwrap();
        let kernel = verified.function(id).unwrap().unwrap().kernel(1).unwrap();
        let attribute = verified.attribute(kernel.attributes().get(0).unwrap());
        prop_assert_eq!(attribute.decode(value.attribute_type()), Ok(value));
    }

    #[test]
    fn files_are_read_at_any_address(module in common::module(), shift in 0usize..8) {
        let mut shifted = vec![0; shift];
        module.write_to(&mut shifted).unwrap();
        prop_assert_eq!(read(&shifted[shift..]), module);
    }

    #[test]
    fn every_attribute_round_trips(value in common::attribute()) {
        let mut module = Module::new(true);
        module.push_attribute(value.clone());
        let bytes = module.to_bytes().unwrap();
        let module = read(&bytes);
        prop_assert_eq!(module.attribute(pteron_bef::AttributeId(0)), Some(&value));
    }

    #[test]
    fn a_verified_file_is_read_without_errors(module in common::module()) {
        let summary = walk(&module.to_bytes().unwrap(), Limits::default()).unwrap();
        prop_assert_eq!(summary.functions, module.functions.len() as u64);
        let kernels: usize = module.bodies().map(|(_, body)| body.kernels.len() + 1).sum();
        prop_assert_eq!(summary.kernels, kernels as u64);
    }
}
