//! A method that is not valid does not affect the others.

use pteron_format::pte::{Header, VerifiedProgram};
use pteron_format::{ErrorKind, Limits};

/// The bytes that hold the number of methods.
const METHOD_COUNT: std::ops::Range<usize> = 160..164;

/// A program with the methods `forward` and `forward2`.
fn two_methods() -> Vec<u8> {
    let path =
        concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/corpus/tiny/ModuleMultipleEntry/model.pte");
    std::fs::read(path).unwrap()
}

fn read(file: &[u8]) -> (pteron_format::Result<VerifiedProgram>, Vec<pteron_format::Error>) {
    let limits = Limits::default();
    let header = Header::parse(&file[..64], file.len() as u64).unwrap();
    let tables = &file[..header.program_size as usize];
    (VerifiedProgram::read(tables, &header, &limits), VerifiedProgram::errors(tables, &header, &limits))
}

#[test]
fn the_other_method_is_valid() {
    let mut file = two_methods();
    // The index of the second method's constant.
    file[720] = 99;
    let (program, errors) = read(&file);
    let program = program.unwrap();
    assert!(program.plan("forward").is_some() && program.plan("forward2").is_none());
    let [invalid] = program.invalid_methods() else { panic!("{:?}", program.invalid_methods()) };
    assert_eq!((invalid.index, invalid.name.as_deref()), (1, Some("forward2")));
    assert_eq!(invalid.error.path(), "execution_plan[1].values[1].data_buffer_idx");
    assert_eq!(invalid.error.offset(), Some(720));
    assert_eq!(errors.len(), 1);
    assert_eq!(errors[0].to_string(), invalid.error.to_string());
}

/// Whatever byte of the tables is damaged, a program that is read has the methods that have no error, and only those.
#[test]
fn every_damaged_byte() {
    let file = two_methods();
    let mut structural = 0;
    for at in (64..2048.min(file.len())).filter(|at| !METHOD_COUNT.contains(at)) {
        let mut file = file.clone();
        file[at] ^= 0xff;
        let (Ok(program), errors) = read(&file) else { continue };
        let methods = program.invalid_methods().len() + program.execution_plan.len();
        assert_eq!(methods, 2, "byte {at}");
        for invalid in program.invalid_methods() {
            let path = format!("execution_plan[{}]", invalid.index);
            assert!(invalid.error.path().starts_with(&path), "byte {at}: {}", invalid.error);
            assert!(errors.iter().any(|error| error.to_string() == invalid.error.to_string()), "byte {at}");
            structural += usize::from(invalid.error.kind() == ErrorKind::Structure);
        }
        assert_eq!(errors.is_empty(), program.invalid_methods().is_empty(), "byte {at}");
    }
    assert!(structural > 0, "no damage to the structure of a single method");
}

#[test]
fn a_program_without_a_valid_method_is_refused() {
    let mut file = two_methods();
    file[720] = 99;
    // The name of the other method is made invalid UTF-8.
    for at in (64..file.len() - 8).filter(|&at| file[at..].starts_with(b"forward\0")).collect::<Vec<_>>() {
        file[at] = 0xff;
    }
    let (program, errors) = read(&file);
    assert_eq!(program.unwrap_err().kind(), errors[0].kind());
}
