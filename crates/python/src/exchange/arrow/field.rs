//! Column types: copies of `ArrowSchema`s, and export to new ones.

use super::abi::{ArrowSchema, text};
use std::ffi::{CString, c_char};
use std::ptr;

/// The Arrow flag (`ARROW_FLAG_NULLABLE`) of nullable fields.
const NULLABLE: i64 = 2;

/// The type and name of a column: an owned `ArrowSchema`.
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
    /// Creates a nullable field.
    pub(super) fn new(format: &str, name: &str, children: Vec<Field>) -> Self {
        let string = |text: &str| CString::new(text.replace('\0', "")).unwrap_or_default();
        let (format, name) = (string(format), string(name));
        Self { format, name, metadata: None, flags: NULLABLE, children, dictionary: None }
    }

    /// The struct type of a batch.
    pub(crate) fn batch(children: Vec<Field>) -> Self {
        Self { flags: 0, ..Self::new("+s", "", children) }
    }

    /// The Arrow format string of the type, such as `f`.
    pub(super) fn format(&self) -> &str {
        self.format.to_str().unwrap_or_default()
    }

    /// The name of the column.
    pub(crate) fn name(&self) -> String {
        self.name.to_string_lossy().into_owned()
    }

    /// The number of buffers that an array of this type has; `None` if the type is not known here.
    pub(super) fn num_buffers(&self) -> Option<usize> {
        Some(match self.format() {
            "n" => 0,
            "+s" => 1,
            "u" | "U" | "z" | "Z" | "vu" | "vz" | "+vl" | "+vL" => 3,
            "+l" | "+L" => 2,
            format if format.starts_with("+w:") => 1,
            format if format.starts_with('+') => return None,
            _ => 2,
        })
    }

    /// The type of the dictionary's values; `None` if the column is not dictionary-encoded.
    pub(super) fn dictionary(&self) -> Option<&Field> {
        self.dictionary.as_deref()
    }

    /// Copies a schema; `None` if it is malformed, or nested deeper than [`MAX_DEPTH`](super::MAX_DEPTH).
    pub(super) fn from_schema(schema: &ArrowSchema) -> Option<Self> {
        Self::from_schema_at(schema, super::MAX_DEPTH)
    }

    fn from_schema_at(schema: &ArrowSchema, depth: usize) -> Option<Self> {
        let depth = depth.checked_sub(1)?;
        // SAFETY: a schema that was not released has `n_children` children, each valid unless it is null.
        let children = unsafe { super::abi::children(schema.children, schema.n_children)? };
        let children = children.into_iter().map(|child| Self::from_schema_at(child, depth));
        // SAFETY: a dictionary is null or valid.
        let dictionary = match unsafe { schema.dictionary.as_ref() } {
            Some(dictionary) => Some(Box::new(Self::from_schema_at(dictionary, depth)?)),
            None => None,
        };
        Some(Self {
            format: text(schema.format),
            name: text(schema.name),
            metadata: metadata(schema.metadata),
            flags: schema.flags,
            children: children.collect::<Option<_>>()?,
            dictionary,
        })
    }

    /// Exports the field to a consumer.
    pub(super) fn export(&self) -> ArrowSchema {
        let mut owner = Box::new(SchemaOwner {
            field: Self { children: Vec::new(), dictionary: None, ..self.clone() },
            children: self.children.iter().map(|child| Box::into_raw(Box::new(child.export()))).collect(),
            dictionary: match &self.dictionary {
                Some(dictionary) => Box::into_raw(Box::new(dictionary.export())),
                None => ptr::null_mut(),
            },
        });
        ArrowSchema {
            format: owner.field.format.as_ptr(),
            name: owner.field.name.as_ptr(),
            metadata: owner
                .field
                .metadata
                .as_ref()
                .map_or(ptr::null(), |bytes| bytes.as_ptr().cast::<c_char>()),
            flags: self.flags,
            n_children: owner.children.len() as i64,
            children: owner.children.as_mut_ptr(),
            dictionary: owner.dictionary,
            release: Some(release),
            private_data: Box::into_raw(owner).cast(),
        }
    }
}

/// Owns everything that an exported schema points to, until the consumer releases it.
struct SchemaOwner {
    field: Field,
    children: Vec<*mut ArrowSchema>,
    dictionary: *mut ArrowSchema,
}

/// The `release` callback of exported schemas, which frees the [`SchemaOwner`].
unsafe extern "C" fn release(schema: *mut ArrowSchema) {
    // SAFETY: `export` leaked the boxes. A consumer that has moved a child has cleared its `release`, but not freed its struct.
    unsafe {
        let owner = Box::from_raw((*schema).private_data.cast::<SchemaOwner>());
        for child in owner.children.iter().copied().chain([owner.dictionary]).filter(|child| !child.is_null())
        {
            let mut child = Box::from_raw(child);
            super::abi::Released::release(&mut *child);
        }
        (*schema).release = None;
    }
}

/// Copies Arrow metadata: a number of pairs, then each key and value after its length.
fn metadata(at: *const c_char) -> Option<Vec<u8>> {
    if at.is_null() {
        return None;
    }
    // SAFETY: by the interface, every length is followed by that number of bytes.
    unsafe {
        let length = |offset: usize| at.add(offset).cast::<i32>().read_unaligned();
        let mut end = size_of::<i32>();
        for _ in 0..length(0).max(0).saturating_mul(2) {
            end += size_of::<i32>() + usize::try_from(length(end)).ok()?;
        }
        Some(std::slice::from_raw_parts(at.cast::<u8>(), end).to_vec())
    }
}
