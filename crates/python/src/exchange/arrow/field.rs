//! Types of columns: copies of `ArrowSchema`s, and such structs of them.

use super::abi::{ArrowSchema, text};
use std::ffi::{CString, c_char};
use std::ptr;

/// The flag of fields that may have nulls.
const NULLABLE: i64 = 2;

/// The type and name of a column, as the interface has them.
#[derive(Clone, Debug)]
pub(crate) struct Field {
    format: CString,
    name: CString,
    metadata: Option<Vec<u8>>,
    flags: i64,
    pub(super) children: Vec<Field>,
    dictionary: Option<Box<Field>>,
}

impl Field {
    /// A field that may have nulls.
    pub(super) fn new(format: &str, name: &str, children: Vec<Field>) -> Self {
        let string = |text: &str| CString::new(text.replace('\0', "")).unwrap_or_default();
        let (format, name) = (string(format), string(name));
        Self { format, name, metadata: None, flags: NULLABLE, children, dictionary: None }
    }

    /// A struct of fields, as batches have it.
    pub(crate) fn of_batch(children: Vec<Field>) -> Self {
        Self { flags: 0, ..Self::new("+s", "", children) }
    }

    /// The format of the interface, such as `f`.
    pub(super) fn format(&self) -> &str {
        self.format.to_str().unwrap_or_default()
    }

    /// The name.
    pub(crate) fn name(&self) -> String {
        self.name.to_string_lossy().into_owned()
    }

    /// Whether values are indices of a dictionary.
    pub(super) fn has_dictionary(&self) -> bool {
        self.dictionary.is_some()
    }

    /// The number of buffers that arrays of the type have; `None` if it is not one of those that are known here.
    pub(super) fn buffers(&self) -> Option<usize> {
        Some(match self.format() {
            "n" => 0,
            "+s" => 1,
            "u" | "U" | "z" | "Z" => 3,
            "+l" | "+L" => 2,
            format if format.starts_with("+w:") => 1,
            format if format.starts_with('+') || format.starts_with('v') => return None,
            _ => 2,
        })
    }

    /// The type of values that are indices of a dictionary.
    pub(super) fn dictionary(&self) -> Option<&Field> {
        self.dictionary.as_deref()
    }

    /// A copy of a schema.
    pub(super) fn of(schema: &ArrowSchema) -> Self {
        let count = usize::try_from(schema.n_children).unwrap_or(0);
        let children = (0..count).map(|i| {
            // SAFETY: a schema that was not released has so many children, each of them valid.
            Self::of(unsafe { &**schema.children.add(i) })
        });
        Self {
            format: text(schema.format),
            name: text(schema.name),
            metadata: metadata(schema.metadata),
            flags: schema.flags,
            children: children.collect(),
            // SAFETY: a dictionary is null or valid.
            dictionary: unsafe { schema.dictionary.as_ref() }
                .map(|dictionary| Box::new(Self::of(dictionary))),
        }
    }

    /// The field as a struct for a consumer.
    pub(super) fn export(&self) -> ArrowSchema {
        let mut kept = Box::new(Kept {
            field: Self { children: Vec::new(), dictionary: None, ..self.clone() },
            children: self.children.iter().map(|child| Box::into_raw(Box::new(child.export()))).collect(),
            dictionary: match &self.dictionary {
                Some(dictionary) => Box::into_raw(Box::new(dictionary.export())),
                None => ptr::null_mut(),
            },
        });
        ArrowSchema {
            format: kept.field.format.as_ptr(),
            name: kept.field.name.as_ptr(),
            metadata: kept
                .field
                .metadata
                .as_ref()
                .map_or(ptr::null(), |bytes| bytes.as_ptr().cast::<c_char>()),
            flags: self.flags,
            n_children: kept.children.len() as i64,
            children: kept.children.as_mut_ptr(),
            dictionary: kept.dictionary,
            release: Some(release),
            private_data: Box::into_raw(kept).cast(),
        }
    }
}

/// What an exported schema points to.
struct Kept {
    field: Field,
    children: Vec<*mut ArrowSchema>,
    dictionary: *mut ArrowSchema,
}

/// The `release` of exported schemas.
unsafe extern "C" fn release(schema: *mut ArrowSchema) {
    // SAFETY: `export` made the boxes. A consumer that has taken a child has cleared its `release`, not its struct.
    unsafe {
        let kept = Box::from_raw((*schema).private_data.cast::<Kept>());
        for child in kept.children.iter().copied().chain([kept.dictionary]).filter(|child| !child.is_null()) {
            let mut child = Box::from_raw(child);
            super::abi::Released::release(&mut *child);
        }
        (*schema).release = None;
    }
}

/// A copy of metadata: a number of pairs, and each key and value with its length before it.
fn metadata(at: *const c_char) -> Option<Vec<u8>> {
    if at.is_null() {
        return None;
    }
    // SAFETY: metadata is as the interface says: every length is followed by so many bytes.
    unsafe {
        let length = |offset: usize| at.add(offset).cast::<i32>().read_unaligned();
        let mut end = size_of::<i32>();
        for _ in 0..length(0).max(0).saturating_mul(2) {
            end += size_of::<i32>() + usize::try_from(length(end)).ok()?;
        }
        Some(std::slice::from_raw_parts(at.cast::<u8>(), end).to_vec())
    }
}
