use super::Path;
use crate::{Error, ErrorKind, Limits, Result};
use std::cell::{Cell, RefCell};
use std::ops::Range;

/// A bounds-checked view of one flatbuffer.
///
/// `base` is the offset of the buffer in its file, so that errors name file offsets.
#[derive(Debug)]
pub struct Reader<'a> {
    bytes: &'a [u8],
    base: u64,
    limits: &'a Limits,
    /// How many bytes may still be decoded before `shared` is charged: at first the length of the buffer, which is
    /// enough if no object is shared, as objects do not overlap then.
    own: Cell<u64>,
    /// How much more may be decoded because objects are shared. Each byte counts eight times, because small objects
    /// take more memory decoded than encoded.
    shared: Cell<u64>,
    watch: Option<&'a str>,
    /// For the nearest enclosing field of the watched path so far: how many bytes of the path remain, and the field's
    /// offset.
    seen: Cell<Option<(usize, u64)>>,
    /// The errors that [`Table::record_recoverable`] recorded.
    passed: RefCell<Vec<Error>>,
    /// The paths that [`Reader::unknown_fields`] returns.
    unknown: RefCell<Vec<String>>,
}

/// The maximum number of unknown fields whose paths are recorded.
const MAX_UNKNOWN: usize = 1000;

/// A scalar that a flatbuffer stores inline.
pub trait Scalar: Copy {
    /// The scalar's size in bytes.
    const SIZE: usize;
    /// Decodes `SIZE` little-endian bytes.
    fn from_le_slice(bytes: &[u8]) -> Self;
    /// The scalar's little-endian bytes.
    fn to_le_bytes(self) -> impl AsRef<[u8]>;
}

macro_rules! scalars {
    ($($t:ty)*) => {$(
        impl Scalar for $t {
            const SIZE: usize = size_of::<$t>();
            fn from_le_slice(bytes: &[u8]) -> Self {
                let mut le = [0; size_of::<$t>()];
                le.copy_from_slice(bytes);
                <$t>::from_le_bytes(le)
            }
            fn to_le_bytes(self) -> impl AsRef<[u8]> {
                self.to_le_bytes()
            }
        }
    )*};
}
scalars!(u8 i8 u16 i16 u32 i32 u64 i64 f32 f64);

impl Scalar for bool {
    const SIZE: usize = 1;
    fn from_le_slice(bytes: &[u8]) -> Self {
        bytes != [0]
    }
    fn to_le_bytes(self) -> impl AsRef<[u8]> {
        [u8::from(self)]
    }
}

impl<'a> Reader<'a> {
    /// A reader of the flatbuffer `bytes`, which starts at offset `base` of its file.
    pub fn new(bytes: &'a [u8], base: u64, limits: &'a Limits) -> Self {
        let len = bytes.len() as u64;
        let shared = limits.shared_bytes.min(len.saturating_mul(64).saturating_add(1 << 20));
        Self {
            bytes,
            base,
            limits,
            own: Cell::new(len),
            shared: Cell::new(shared),
            watch: None,
            seen: Cell::new(None),
            passed: RefCell::default(),
            unknown: RefCell::default(),
        }
    }

    /// Makes the reader record the offset of the field that displays as `path`, or of the nearest enclosing field; see
    /// [`Self::watched_offset`].
    pub fn with_watched_path(mut self, path: &'a str) -> Self {
        self.watch = Some(path);
        self
    }

    /// The file offset of the watched field, or of the nearest enclosing field, once it has been read.
    pub fn watched_offset(&self) -> Option<u64> {
        self.seen.get().map(|(_, offset)| offset)
    }

    /// The limits that the reader enforces.
    pub fn limits(&self) -> &'a Limits {
        self.limits
    }

    /// The paths of table fields that the decoder does not know, such as `execution_plan[0].field_12`; if there are any, the file has a
    /// newer schema. At most a thousand.
    pub fn unknown_fields(&self) -> Vec<String> {
        self.unknown.borrow().clone()
    }

    /// Reads the root table.
    pub fn root<T>(&self, read: impl FnOnce(&Table<'_, 'a>) -> Result<T>) -> Result<T> {
        let path = Path::ROOT.field("root");
        let position = self.follow(0, &path)?;
        self.record_watched(self.watch.map(str::len), position);
        self.table(position, Path::ROOT, self.limits.nesting)?.read(read)
    }

    fn slice(&self, at: usize, len: usize, what: &'static str, path: &Path<'_>) -> Result<&'a [u8]> {
        match at.checked_add(len).and_then(|end| self.bytes.get(at..end)) {
            Some(bytes) => Ok(bytes),
            None => Err(self.out_of_bounds_error(at, len as u64, what, path)),
        }
    }

    #[cold]
    fn out_of_bounds_error(&self, at: usize, len: u64, what: &'static str, path: &Path<'_>) -> Error {
        Error::new(
            ErrorKind::Structure,
            path.to_string(),
            format!("{what} within the flatbuffer of {} bytes", self.bytes.len()),
            format_args!("{len} bytes at its byte {at}"),
        )
        .at(self.base.saturating_add(at as u64))
    }

    #[cold]
    fn over_limit_error(
        &self,
        at: usize,
        actual: u64,
        limit: u64,
        what: &'static str,
        path: &Path<'_>,
    ) -> Error {
        Error::new(ErrorKind::Limit, path.to_string(), format!("at most {limit} {what}"), actual)
            .at(self.base.saturating_add(at as u64))
            .hint("raise the limit if the file is trusted")
    }

    fn scalar<S: Scalar>(&self, at: usize, what: &'static str, path: &Path<'_>) -> Result<S> {
        self.slice(at, S::SIZE, what, path).map(S::from_le_slice)
    }

    /// The position that the offset stored at `at` points to.
    fn follow(&self, at: usize, path: &Path<'_>) -> Result<usize> {
        let offset: u32 = self.scalar(at, "an offset", path)?;
        match at.checked_add(offset as usize) {
            Some(target) if offset != 0 && target < self.bytes.len() => Ok(target),
            _ => Err(Error::new(
                ErrorKind::Structure,
                path.to_string(),
                format!("an offset into the flatbuffer of {} bytes", self.bytes.len()),
                format_args!("offset {offset} at its byte {at}"),
            )
            .at(self.base.saturating_add(at as u64))),
        }
    }

    fn charge(&self, bytes: u64, at: usize, path: &Path<'_>) -> Result<()> {
        if let Some(left) = self.own.get().checked_sub(bytes) {
            self.own.set(left);
            return Ok(());
        }
        let more = bytes - self.own.take();
        match self.shared.get().checked_sub(more.saturating_mul(8)) {
            Some(left) => {
                self.shared.set(left);
                Ok(())
            }
            None => Err(Error::new(
                ErrorKind::Limit,
                path.to_string(),
                "tables and vectors of their own",
                "so many offsets to the same bytes that they would unfold beyond all measure",
            )
            .at(self.base.saturating_add(at as u64))),
        }
    }

    fn table<'r>(&'r self, position: usize, path: Path<'r>, nesting: u32) -> Result<Table<'r, 'a>> {
        if nesting == 0 {
            return Err(self.over_limit_error(
                position,
                u64::from(self.limits.nesting) + 1,
                u64::from(self.limits.nesting),
                "levels of tables",
                &path,
            ));
        }
        let back: i32 = self.scalar(position, "a table", &path)?;
        let vtable = position as i64 - i64::from(back);
        let Ok(vtable) = usize::try_from(vtable) else {
            return Err(self.out_of_bounds_error(position, 4, "a table whose vtable lies", &path));
        };
        let vtable_len: u16 = self.scalar(vtable, "a vtable", &path)?;
        let len: u16 = self.scalar(vtable.saturating_add(2), "a vtable", &path)?;
        if vtable_len < 4 || !vtable_len.is_multiple_of(2) || len < 4 {
            return Err(Error::new(
                ErrorKind::Structure,
                path.to_string(),
                "a vtable of at least 4 bytes, an even number, for a table of at least 4",
                format_args!("{vtable_len} bytes for a table of {len}"),
            )
            .at(self.base.saturating_add(vtable as u64)));
        }
        let vtable = self.slice(vtable, vtable_len.into(), "a vtable", &path)?;
        self.slice(position, len.into(), "a table", &path)?;
        self.charge(u64::from(len), position, &path)?;
        Ok(Table { reader: self, position, vtable, len, path, nesting, known: Cell::new(0) })
    }

    /// If the field at `at` is on the watched path, records it; `rest` bytes of the path remain after the field.
    fn record_watched(&self, rest: Option<usize>, at: usize) {
        if let Some(rest) = rest
            && self.seen.get().is_none_or(|(nearest, _)| rest <= nearest)
        {
            self.seen.set(Some((rest, self.base.saturating_add(at as u64))));
        }
    }

    /// The vector at `at`, with entries of `size` bytes: the position of its first entry, and the number of entries.
    fn vector(&self, at: usize, size: usize, path: &Path<'_>) -> Result<(usize, usize)> {
        let count: u32 = self.scalar(at, "a vector", path)?;
        let start = at.saturating_add(4);
        let bytes = u64::from(count) * size as u64;
        if bytes > (self.bytes.len() - start.min(self.bytes.len())) as u64 {
            return Err(self.out_of_bounds_error(start, bytes, "a vector", path));
        }
        if let Some((index, rest)) = self.watch.and_then(|watch| path.parse_index(watch))
            && index < count as usize
        {
            self.record_watched(Some(rest), start + index * size);
        }
        Ok((start, count as usize))
    }

    fn vector_within_limits(&self, at: usize, size: usize, path: &Path<'_>) -> Result<(usize, usize)> {
        let (start, count) = self.vector(at, size, path)?;
        if count as u64 > self.limits.vector_len {
            return Err(self.over_limit_error(at, count as u64, self.limits.vector_len, "entries", path));
        }
        self.charge((count * size) as u64, at, path)?;
        Ok((start, count))
    }

    fn str(&self, at: usize, path: &Path<'_>) -> Result<&'a str> {
        let (start, len) = self.vector(at, 1, path)?;
        if len as u64 > self.limits.string_bytes {
            return Err(self.over_limit_error(
                at,
                len as u64,
                self.limits.string_bytes,
                "bytes of text",
                path,
            ));
        }
        self.charge(len as u64, at, path)?;
        let bytes = self.slice(start, len, "a string", path)?;
        std::str::from_utf8(bytes).map_err(|error| {
            Error::new(
                ErrorKind::Structure,
                path.to_string(),
                "text in UTF-8",
                format_args!(
                    "byte {:#04x} after {} good ones",
                    bytes[error.valid_up_to()],
                    error.valid_up_to()
                ),
            )
            .at(self.base.saturating_add((start + error.valid_up_to()) as u64))
        })
    }
}

/// A checked table. Fields are addressed by their id in the schema; names are used in errors.
#[derive(Debug)]
pub struct Table<'r, 'a> {
    reader: &'r Reader<'a>,
    position: usize,
    vtable: &'a [u8],
    len: u16,
    path: Path<'r>,
    nesting: u32,
    /// One more than the highest field id that was asked for so far; higher ids are unknown to the decoder.
    known: Cell<usize>,
}

impl<'a> Table<'_, 'a> {
    /// Decodes the table, and records the fields that `read` does not know.
    fn read<T>(&self, read: impl FnOnce(&Self) -> Result<T>) -> Result<T> {
        let decoded = read(self)?;
        self.note_unknown_fields();
        Ok(decoded)
    }

    /// Declares that decoding stopped early, so that fields that were not read are not reported as unknown.
    pub fn stop_early(&self) {
        self.known.set(usize::MAX);
    }

    fn note_unknown_fields(&self) {
        if self.field_slots() > self.known.get() && self.reader.watch.is_none() {
            for id in self.known.get()..self.field_slots() {
                let mut unknown = self.reader.unknown.borrow_mut();
                let is_present = self.vtable.get(4 + 2 * id..).is_some_and(|slot| !slot.starts_with(&[0, 0]));
                if is_present && unknown.len() < MAX_UNKNOWN {
                    let dot = if self.path == Path::ROOT { "" } else { "." };
                    unknown.push(format!("{}{dot}field_{id}", self.path));
                }
            }
        }
    }

    /// The path of this table in its file.
    pub fn path(&self) -> &Path<'_> {
        &self.path
    }

    /// Number of fields that the table's vtable has room for, which tells editions of a schema apart.
    pub fn field_slots(&self) -> usize {
        self.vtable.len() / 2 - 2
    }

    /// An error at the field `name` of this table.
    #[cold]
    pub fn error(
        &self,
        kind: ErrorKind,
        id: usize,
        name: &'static str,
        expected: impl Into<std::borrow::Cow<'static, str>>,
        found: impl std::fmt::Display,
    ) -> Error {
        let place = self.field_position(id, 1, name).ok().flatten().unwrap_or(self.position);
        Error::new(kind, self.path.field(name).to_string(), expected, found)
            .at(self.reader.base.saturating_add(place as u64))
    }

    /// Records an error that does not prevent the rest from being decoded: a member of an enum or union that this
    /// reader does not know. [`Self::take_recoverable`] returns it.
    #[cold]
    pub fn record_recoverable(&self, error: Error) {
        self.reader.passed.borrow_mut().push(error);
    }

    /// The errors recorded by [`Self::record_recoverable`] since the last call, by any table of the buffer.
    pub fn take_recoverable(&self) -> Vec<Error> {
        self.reader.passed.take()
    }

    /// An error about this whole table.
    #[cold]
    pub fn error_here(
        &self,
        kind: ErrorKind,
        expected: impl Into<std::borrow::Cow<'static, str>>,
        found: impl std::fmt::Display,
    ) -> Error {
        Error::new(kind, self.path.to_string(), expected, found)
            .at(self.reader.base.saturating_add(self.position as u64))
    }

    /// The position of field `id`, which takes `size` bytes in the table, or `None` if it is absent.
    fn field_position(&self, id: usize, size: usize, name: &'static str) -> Result<Option<usize>> {
        self.known.set(self.known.get().max(id + 1));
        let slot = 4 + 2 * id;
        let Some(entry) = self.vtable.get(slot..slot + 2) else {
            return Ok(None);
        };
        let offset = usize::from(u16::from_le_slice(entry));
        if offset == 0 {
            return Ok(None);
        }
        if offset < 4 || offset + size > usize::from(self.len) {
            return Err(Error::new(
                ErrorKind::Structure,
                self.path.field(name).to_string(),
                format!("a field of {size} bytes within its table of {}", self.len),
                format_args!("it at byte {offset} of the table"),
            )
            .at(self.reader.base.saturating_add(self.position as u64)));
        }
        let at = self.position + offset;
        if let Some(watch) = self.reader.watch {
            self.reader.record_watched(self.path.field(name).remaining_len(watch), at);
        }
        Ok(Some(at))
    }

    /// The scalar field `id`, or its default if absent.
    pub fn get<S: Scalar>(&self, id: usize, name: &'static str, default: S) -> Result<S> {
        match self.field_position(id, S::SIZE, name)? {
            Some(at) => self.reader.scalar(at, "a number", &self.path.field(name)),
            None => Ok(default),
        }
    }

    /// The position that the offset field `id` points to, if present.
    fn target_position(&self, id: usize, name: &'static str) -> Result<Option<usize>> {
        match self.field_position(id, 4, name)? {
            Some(at) => self.reader.follow(at, &self.path.field(name)).map(Some),
            None => Ok(None),
        }
    }

    /// The string field `id`.
    pub fn string(&self, id: usize, name: &'static str) -> Result<Option<String>> {
        match self.target_position(id, name)? {
            Some(at) => self.reader.str(at, &self.path.field(name)).map(|text| Some(text.to_owned())),
            None => Ok(None),
        }
    }

    /// The string field `id`, which must be present.
    pub fn required_string(&self, id: usize, name: &'static str) -> Result<String> {
        let string = self.string(id, name)?;
        string.ok_or_else(|| self.error(ErrorKind::Structure, id, name, "a string", "nothing"))
    }

    /// The scalar vector field `id`; empty if absent.
    pub fn scalars<S: Scalar>(&self, id: usize, name: &'static str) -> Result<Vec<S>> {
        let Some(at) = self.target_position(id, name)? else {
            return Ok(Vec::new());
        };
        let path = self.path.field(name);
        let (start, count) = self.reader.vector_within_limits(at, S::SIZE, &path)?;
        let bytes = self.reader.slice(start, count * S::SIZE, "a vector", &path)?;
        Ok(bytes.chunks_exact(S::SIZE).map(S::from_le_slice).collect())
    }

    /// The byte vector field `id`, copied; empty if absent. Its length is bounded by the buffer, not by
    /// [`Limits::vector_len`].
    pub fn bytes(&self, id: usize, name: &'static str) -> Result<Vec<u8>> {
        let Some(at) = self.target_position(id, name)? else {
            return Ok(Vec::new());
        };
        let path = self.path.field(name);
        let (start, len) = self.reader.vector(at, 1, &path)?;
        self.reader.charge(len as u64, at, &path)?;
        self.reader.slice(start, len, "a vector", &path).map(<[u8]>::to_vec)
    }

    /// The byte range in the file of the bulk byte vector field `id`. It is not copied, so its length is not bounded by
    /// [`Limits::vector_len`].
    pub fn byte_range(&self, id: usize, name: &'static str) -> Result<Option<Range<u64>>> {
        let Some(at) = self.target_position(id, name)? else {
            return Ok(None);
        };
        let (start, len) = self.reader.vector(at, 1, &self.path.field(name))?;
        let start = self.reader.base + start as u64;
        Ok(Some(start..start + len as u64))
    }

    /// The table field `id`, decoded by `read`.
    pub fn table<T>(
        &self,
        id: usize,
        name: &'static str,
        read: impl FnOnce(&Table<'_, 'a>) -> Result<T>,
    ) -> Result<Option<T>> {
        match self.target_position(id, name)? {
            Some(at) => self.reader.table(at, self.path.field(name), self.nesting - 1)?.read(read).map(Some),
            None => Ok(None),
        }
    }

    /// The table field `id`, which must be present.
    pub fn required_table<T>(
        &self,
        id: usize,
        name: &'static str,
        read: impl FnOnce(&Table<'_, 'a>) -> Result<T>,
    ) -> Result<T> {
        let table = self.table(id, name, read)?;
        table.ok_or_else(|| self.error(ErrorKind::Structure, id, name, "a table", "nothing"))
    }

    /// The tables of the vector field `id`, each decoded by `read`; empty if the field is absent.
    pub fn tables<T>(
        &self,
        id: usize,
        name: &'static str,
        mut read: impl FnMut(&Table<'_, 'a>) -> Result<T>,
    ) -> Result<Vec<T>> {
        self.each_table(id, name, |table| read(table?))
    }

    /// As [`Self::tables`], but `read` also gets the errors of tables that cannot be read.
    pub fn each_table<T>(
        &self,
        id: usize,
        name: &'static str,
        mut read: impl FnMut(Result<&Table<'_, 'a>>) -> Result<T>,
    ) -> Result<Vec<T>> {
        let Some((start, count)) = self.table_offsets(id, name)? else {
            return Ok(Vec::new());
        };
        let path = self.path.field(name);
        let mut all = Vec::with_capacity(count.min(4096));
        for index in 0..count {
            all.push(match self.entry(start, index, path.index(index)) {
                Ok(table) => {
                    let decoded = read(Ok(&table))?;
                    table.note_unknown_fields();
                    decoded
                }
                Err(error) => read(Err(error))?,
            });
        }
        Ok(all)
    }

    /// The position of the first entry of a vector of tables, and the number of entries; `None` if it is absent.
    fn table_offsets(&self, id: usize, name: &'static str) -> Result<Option<(usize, usize)>> {
        match self.target_position(id, name)? {
            Some(at) => self.reader.vector_within_limits(at, 4, &self.path.field(name)).map(Some),
            None => Ok(None),
        }
    }

    /// The entry `index` of the vector of tables whose first entry is at `start`.
    fn entry<'s>(&'s self, start: usize, index: usize, path: Path<'s>) -> Result<Table<'s, 'a>> {
        let item = self.reader.follow(start + 4 * index, &path)?;
        self.reader.table(item, path, self.nesting - 1)
    }

    /// The union whose type is field `id` and whose table is field `id + 1`. `read` is called with the type and the
    /// table, which has the path of this table. `None` if the type is NONE.
    pub fn union<T>(
        &self,
        id: usize,
        name: &'static str,
        read: impl FnOnce(u8, &Table<'_, 'a>) -> Result<T>,
    ) -> Result<Option<T>> {
        let kind: u8 = self.get(id, name, 0)?;
        self.known.set(self.known.get().max(id + 2));
        if kind == 0 {
            return Ok(None);
        }
        let Some(at) = self.target_position(id + 1, name)? else {
            return Err(self.error(
                ErrorKind::Structure,
                id,
                name,
                "the table of a union",
                format_args!("kind {kind} and no table"),
            ));
        };
        self.reader.table(at, self.path, self.nesting - 1)?.read(|table| read(kind, table)).map(Some)
    }
}
