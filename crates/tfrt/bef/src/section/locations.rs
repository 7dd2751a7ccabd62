//! Section 7, Locations: trees, stored in preorder, each node a tag byte and its fields.
//!
//! | tag | node |
//! | --- | --- |
//! | `00` | unknown |
//! | `01` | `VBR file, VBR line, VBR column` |
//! | `02` | `VBR name`, child |
//! | `03` | callee, caller |
//! | `04` | `VBR n`, `n` locations |
//!
//! An offset at or past the end of the section means "no location".

use super::location_strings::{LocationStrings, LocationStringsWriter};
use super::strings::LastString;
use crate::buffer::Buffer;
use crate::error::{Error, ErrorKind, InField, Result};
use crate::limits::Limits;
use crate::location::Location;
use crate::region::{Cursor, Region};

/// Cost of decoding a node, per byte in the file. A string costs 1 per byte, since it is borrowed; a decoded node takes
/// roughly this many times its size in the file.
const NODE_COST: u64 = 8;

/// The locations of a file.
#[derive(Clone, Copy, Debug, Default)]
pub struct Locations<'a> {
    region: Region<'a>,
    strings: LocationStrings<'a>,
    nesting: usize,
}

/// A location without its children. `S` represents a file or name: as its text, or as only the text's length.
enum Node<S> {
    Unknown,
    FileLineCol { file: S, line: u64, column: u64 },
    Name(S),
    CallSite,
    Fused(u64),
}

/// A location that still lacks some of its children.
enum Incomplete<'a> {
    Name(&'a str),
    CallSite(Option<Location<'a>>),
    Fused { missing: u64, parts: Vec<Location<'a>> },
}

impl<'a> Incomplete<'a> {
    /// Adds a child. Returns the finished location or, as `Err`, the location that still lacks further children.
    fn add_child(self, child: Location<'a>) -> Result<Location<'a>, Incomplete<'a>> {
        match self {
            Incomplete::Name(name) => Ok(Location::Name { name: name.into(), child: child.into() }),
            Incomplete::CallSite(None) => Err(Incomplete::CallSite(Some(child))),
            Incomplete::CallSite(Some(callee)) => {
                Ok(Location::CallSite { callee: callee.into(), caller: child.into() })
            }
            Incomplete::Fused { missing, mut parts } => {
                parts.push(child);
                match missing {
                    0 | 1 => Ok(Location::Fused(parts)),
                    _ => Err(Incomplete::Fused { missing: missing - 1, parts }),
                }
            }
        }
    }
}

impl<'a> Locations<'a> {
    pub(crate) fn new(region: Region<'a>, strings: LocationStrings<'a>, limits: &Limits) -> Self {
        Locations { region, strings, nesting: limits.effective_location_nesting() }
    }

    /// The section's bytes.
    pub fn region(&self) -> Region<'a> {
        self.region
    }

    /// The location at `offset`; `None` when the offset is at or past the end of the section.
    ///
    /// # Errors
    /// If the bytes there are not a valid location, or it is nested deeper than the limits allow.
    pub fn get(&self, offset: u64) -> Result<Option<Location<'a>>> {
        if offset >= self.region.len() {
            return Ok(None);
        }
        self.decode(offset).map(Some).in_field(|| format!("locations[{offset}]"))
    }

    fn decode(&self, offset: u64) -> Result<Location<'a>> {
        let mut cursor = self.region.slice_from(offset)?.cursor();
        let mut open: Vec<Incomplete<'a>> = Vec::new();
        'nodes: loop {
            let mut location = match self.read_node(&mut cursor, open.len(), LocationStrings::get)? {
                Node::Unknown => Location::Unknown,
                Node::FileLineCol { file, line, column } => Location::file(file, line, column),
                Node::Fused(0) => Location::Fused(Vec::new()),
                Node::Name(name) => {
                    open.push(Incomplete::Name(name));
                    continue;
                }
                Node::CallSite => {
                    open.push(Incomplete::CallSite(None));
                    continue;
                }
                Node::Fused(missing) => {
                    open.push(Incomplete::Fused { missing, parts: Vec::new() });
                    continue;
                }
            };
            while let Some(parent) = open.pop() {
                match parent.add_child(location) {
                    Ok(finished) => location = finished,
                    Err(waiting) => {
                        open.push(waiting);
                        continue 'nodes;
                    }
                }
            }
            return Ok(location);
        }
    }

    /// Checks the location at `offset`, which must be inside the section. Returns the offset of its end and its
    /// decoding cost: the length of its strings, whose text is not checked, and [`NODE_COST`] for each byte of its
    /// own. `last` is the previously checked string.
    pub(crate) fn check(&self, offset: u64, last: &mut LastString) -> Result<(u64, u64)> {
        let mut check = || {
            let mut cursor = self.region.slice_from(offset)?.cursor();
            // Number of children that each open node lacks, outermost first.
            let mut missing: Vec<u64> = Vec::new();
            let mut strings = 0u64;
            'nodes: loop {
                match self.read_node(&mut cursor, missing.len(), |strings, offset| {
                    strings.check_start(offset, last)
                })? {
                    Node::Unknown | Node::Fused(0) => {}
                    Node::FileLineCol { file, .. } => strings = strings.saturating_add(file),
                    Node::Name(name) => {
                        strings = strings.saturating_add(name);
                        missing.push(1);
                        continue;
                    }
                    Node::CallSite => {
                        missing.push(2);
                        continue;
                    }
                    Node::Fused(count) => {
                        missing.push(count);
                        continue;
                    }
                }
                while let Some(parent) = missing.last_mut() {
                    *parent -= 1;
                    if *parent > 0 {
                        continue 'nodes;
                    }
                    missing.pop();
                }
                let cost = strings.saturating_add(NODE_COST * cursor.position());
                return Ok((offset + cursor.position(), cost));
            }
        };
        check().in_field(|| format!("locations[{offset}]"))
    }

    fn read_node<S>(
        &self,
        cursor: &mut Cursor<'a>,
        depth: usize,
        mut string: impl FnMut(&LocationStrings<'a>, u64) -> Result<S>,
    ) -> Result<Node<S>> {
        let at = cursor.offset();
        if depth >= self.nesting {
            return Err(Error::new(
                ErrorKind::Limit,
                at,
                format!("a location {} deep", depth + 1),
                format!("at most {} (Limits::location_nesting)", self.nesting),
            ));
        }
        Ok(match cursor.u8()? {
            0 => Node::Unknown,
            1 => {
                let file = cursor.vbr().and_then(|file| string(&self.strings, file)).in_field(|| "file")?;
                let line = cursor.vbr().in_field(|| "line")?;
                let column = cursor.vbr().in_field(|| "column")?;
                Node::FileLineCol { file, line, column }
            }
            2 => Node::Name(cursor.vbr().and_then(|name| string(&self.strings, name)).in_field(|| "name")?),
            3 => Node::CallSite,
            4 => Node::Fused(cursor.count("fused locations", 1)?),
            tag => {
                return Err(Error::new(
                    ErrorKind::UnknownTag,
                    at,
                    format!("location kind {tag}"),
                    "0 (unknown), 1 (file), 2 (name), 3 (call site) or 4 (fused)",
                ));
            }
        })
    }
}

/// Writes locations in the order in which functions and kernels use them; equal locations are not shared.
#[derive(Debug)]
pub(crate) struct LocationsWriter<'m> {
    out: Buffer<'m>,
    strings: LocationStringsWriter<'m>,
    /// The smallest offset given so far to a missing location: these offsets count down from 2^32 - 2.
    absent: u32,
    /// Total bytes of the strings that the written locations refer to, counted once per use.
    text: u64,
    /// Maximum nesting depth of a location.
    nesting: usize,
}

impl<'m> LocationsWriter<'m> {
    pub(crate) fn new(limits: &Limits) -> Self {
        LocationsWriter {
            nesting: limits.effective_location_nesting(),
            out: Buffer::new(),
            strings: LocationStringsWriter::new(),
            absent: u32::MAX,
            text: 0,
        }
    }

    /// Appends `location` and returns its offset. Each missing location gets a distinct offset, counted down from
    /// 2^32 - 2.
    pub(crate) fn append(&mut self, location: Option<&'m Location<'_>>) -> Result<u32> {
        let Some(location) = location else {
            self.absent -= 1;
            return Ok(self.absent);
        };
        let offset = self.out.len();
        let mut rest = vec![(location, 1)];
        while let Some((location, depth)) = rest.pop() {
            if depth > self.nesting {
                return Err(Error::without_offset(
                    ErrorKind::Limit,
                    format!("a location {depth} deep"),
                    format!("at most {} (Limits::location_nesting)", self.nesting),
                ));
            }
            match location {
                Location::Unknown => self.out.byte(0),
                Location::FileLineCol { file, line, column } => {
                    self.text += file.len() as u64;
                    self.out.byte(1);
                    self.out.vbr(self.strings.intern(file)?);
                    self.out.vbr(*line);
                    self.out.vbr(*column);
                }
                Location::Name { name, child } => {
                    self.text += name.len() as u64;
                    self.out.byte(2);
                    self.out.vbr(self.strings.intern(name)?);
                    rest.push((child, depth + 1));
                }
                Location::CallSite { callee, caller } => {
                    self.out.byte(3);
                    rest.extend([(&**caller, depth + 1), (callee, depth + 1)]);
                }
                Location::Fused(parts) => {
                    self.out.byte(4);
                    self.out.vbr(parts.len() as u64);
                    rest.extend(parts.iter().rev().map(|part| (part, depth + 1)));
                }
            }
        }
        match u32::try_from(offset) {
            Ok(offset) if offset < self.absent => Ok(offset),
            _ => Err(Error::without_offset(
                ErrorKind::Unaddressable,
                format!("a location at offset {offset}"),
                "one below 4 GiB: kernels refer to locations by 32-bit offsets",
            )),
        }
    }

    /// What reading the locations costs: see [`Locations::check`]. Each location is charged twice: where it is stored, and at its only use.
    pub(crate) fn reading_cost(&self) -> u64 {
        self.out.len().saturating_mul(NODE_COST).saturating_add(self.text).saturating_mul(2)
    }

    /// The LocationStrings and Locations sections; `None` if no location was written, so that both are left out.
    pub(crate) fn finish(self) -> Option<(Buffer<'m>, Buffer<'m>)> {
        (self.out.len() > 0).then(|| (self.strings.finish(), self.out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Location<'static> {
        let name = |name: &'static str, child| Location::Name { name: name.into(), child: Box::new(child) };
        Location::Fused(vec![
            Location::CallSite {
                callee: Box::new(name("inner", Location::file("a.mlir", 3, 7))),
                caller: Box::new(Location::Fused(vec![Location::Unknown])),
            },
            name("outer", Location::Unknown),
            Location::file("a.mlir", 300, 1),
        ])
    }

    fn written(locations: &[Option<&'static Location<'static>>]) -> (Vec<u32>, Vec<u8>, Vec<u8>) {
        let mut writer = LocationsWriter::new(&Limits::default());
        let offsets = locations.iter().map(|location| writer.append(*location).unwrap()).collect();
        let bytes = |buffer: Buffer<'_>| {
            let mut out = Vec::new();
            buffer.write_to(&mut out).unwrap();
            out
        };
        let (strings, locations) = writer.finish().unwrap();
        (offsets, bytes(strings), bytes(locations))
    }

    #[test]
    fn trees_round_trip_and_strings_are_shared() {
        let sample: &'static Location<'static> = Box::leak(Box::new(sample()));
        let (offsets, strings, bytes) = written(&[None, Some(sample), None, Some(sample)]);
        assert_eq!(strings, b"inner\0a.mlir\0outer\0");
        assert_eq!((offsets[0], offsets[1], offsets[2]), (0xFFFF_FFFE, 0, 0xFFFF_FFFD));
        let strings = LocationStrings::new(Region::new(&strings, 0));
        let locations = Locations::new(Region::new(&bytes, 0), strings, &Limits::default());
        for offset in [offsets[1], offsets[3]] {
            assert_eq!(locations.get(offset.into()).unwrap().as_ref(), Some(sample));
        }
        let size = u64::from(offsets[3]);
        let strings = "inner.".len() + 2 * "a.mlir.".len() + "outer.".len();
        assert_eq!(
            locations.check(0, &mut LastString::default()).unwrap(),
            (size, NODE_COST * size + strings as u64)
        );
        assert_eq!(locations.check(size, &mut LastString::default()).unwrap().0, bytes.len() as u64);
        assert_eq!(locations.get(0xFFFF_FFFE).unwrap(), None);
    }

    #[test]
    fn locations_display_as_in_the_reference() {
        assert_eq!(Location::file("a.mlir", 3, 7).to_string(), "a.mlir:3:7");
        assert_eq!(sample().to_string(), "a.mlir;3;7(inner)<-(unknown),outer,a.mlir;300;1");
    }

    #[test]
    fn nesting_is_bounded_and_errors_in_trees_have_offsets() {
        let limits = Limits { location_nesting: 3, ..Limits::default() };
        let read = |bytes: &[u8]| {
            let locations = Locations::new(Region::new(bytes, 50), LocationStrings::default(), &limits);
            assert_eq!(locations.get(0).map(drop), locations.check(0, &mut LastString::default()).map(drop));
            locations.get(0).map(|location| location.map(Location::into_owned))
        };
        let error = read(&[3, 0, 3, 0, 3, 0, 0]).unwrap_err();
        assert_eq!((error.kind, error.offset), (ErrorKind::Limit, Some(55)));
        assert_eq!(read(&[3, 0, 3, 0, 9]).unwrap_err().kind, ErrorKind::UnknownTag);
        assert_eq!(read(&[4, 5, 0]).unwrap_err().kind, ErrorKind::Truncated);
        assert_eq!(read(&[1, 0, 1, 1]).unwrap_err().kind, ErrorKind::OutOfRange);
        assert_eq!(read(&[4, 0]).unwrap(), Some(Location::Fused(vec![])));
    }
}
