use crate::flatbuffer::{Field, FieldKind, In, Layout, Ref, Writer};
use crate::{Error, ErrorKind, Limits, Result};
use std::ops::Range;

/// Raw bytes stored after the flatbuffer (`DataSegment`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct DataSegment {
    /// Offset from the file's segment base, in bytes.
    pub offset: u64,
    /// Size in bytes, without padding.
    pub size: u64,
}

/// The flatbuffer layout of the `DataSegment` table.
pub(crate) static DATA_SEGMENT: Layout =
    Layout(&[("offset", FieldKind::Scalar(8)), ("size", FieldKind::Scalar(8))]);

/// Decodes a segment's table.
pub(crate) fn read_segment(t: In<'_, '_, '_>) -> Result<DataSegment> {
    Ok(DataSegment { offset: t.get(0, "offset", 0)?, size: t.get(1, "size", 0)? })
}

/// Writes the segments' tables.
pub(crate) fn write_data_segments(w: &mut Writer, segments: &[DataSegment]) -> Ref {
    w.tables(segments, |w, segment| {
        w.table(&[Field::scalar(segment.offset, 0), Field::scalar(segment.size, 0)])
    })
}

/// The byte range of a segment in the file; `None` if it overflows.
pub(crate) fn segment_range(segment: &DataSegment, base: u64) -> Option<Range<u64>> {
    let start = base.checked_add(segment.offset)?;
    Some(start..start.checked_add(segment.size)?)
}

/// The bounds that the segments of a file must respect.
pub(crate) struct SegmentSpace {
    /// The segment base, a byte offset in the file; `None` if no header gives it.
    pub(crate) base: Option<u64>,
    /// Number of bytes of all segments together, if the header states it.
    pub(crate) data_size: Option<u64>,
    /// The byte offset at which the flatbuffer ends.
    pub(crate) program_end: u64,
    /// The length of the file in bytes.
    pub(crate) file_len: u64,
}

/// Checks that every segment is in bounds of the file, starts after the flatbuffer, and that no two segments overlap.
///
/// An empty segment may be anywhere. Two segments with identical ranges are accepted, since segments are read-only and
/// a writer may share bytes that way. Any other overlap is rejected: no writer produces it, and it could serve to make
/// two readers see different contents.
pub(crate) fn check_segments(
    segments: &[DataSegment],
    space: &SegmentSpace,
    limits: &Limits,
    mut report: impl FnMut(Error) -> bool,
) {
    if segments.len() as u64 > limits.segments {
        report(Error::new(
            ErrorKind::Limit,
            "segments",
            format!("at most {} segments", limits.segments),
            segments.len(),
        ));
        return;
    }
    let mut placed: Vec<(Range<u64>, usize)> = Vec::new();
    for (index, segment) in segments.iter().enumerate() {
        if segment.size == 0 {
            continue;
        }
        let path = || format!("segments[{index}]");
        let actual = || format!("offset {} and size {}", segment.offset, segment.size);
        let Some(base) = space.base else {
            let error = Error::new(
                ErrorKind::Invalid,
                path(),
                "no bytes in a segment of a file without extended header",
                actual(),
            );
            if !report(error.hint("the header is lost or damaged; export the program again")) {
                return;
            }
            continue;
        };
        let range = segment_range(segment, base);
        let within_data = space
            .data_size
            .is_none_or(|size| segment.offset.checked_add(segment.size).is_some_and(|end| end <= size));
        let problem = match &range {
            None => Some("an offset and a size whose sum does not overflow".to_owned()),
            Some(range) if range.end > space.file_len => Some(format!(
                "an end within the file of {} bytes, segments starting at {base}",
                space.file_len
            )),
            Some(_) if !within_data => Some(format!(
                "an end within the {} bytes of segment data that the header announces",
                space.data_size.unwrap_or_default()
            )),
            Some(range) if range.start < space.program_end => Some(format!(
                "a start behind the program's tables, which end at byte {}, segments starting at {base}",
                space.program_end
            )),
            Some(_) => None,
        };
        match (problem, range) {
            (Some(expected), range) => {
                let truncated = range.is_some_and(|r| r.end > space.file_len && r.start <= space.file_len);
                let kind = if truncated { ErrorKind::Truncated } else { ErrorKind::Invalid };
                if !report(Error::new(kind, path(), expected, actual())) {
                    return;
                }
            }
            (None, Some(range)) => placed.push((range, index)),
            (None, None) => {}
        }
    }
    placed.sort_by_key(|(range, index)| (range.start, range.end, *index));
    for pair in placed.windows(2) {
        let [(first, i), (second, j)] = pair else { continue };
        if second.start < first.end && first != second {
            let error = Error::new(
                ErrorKind::Invalid,
                format!("segments[{j}]"),
                format!(
                    "bytes of its own, or the very bytes of segments[{i}], which are {first:?} of the file"
                ),
                format_args!("{second:?}"),
            );
            if !report(error) {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errors(segments: &[(u64, u64)]) -> Vec<String> {
        let segments: Vec<_> = segments.iter().map(|&(offset, size)| DataSegment { offset, size }).collect();
        let space = SegmentSpace { base: Some(128), data_size: Some(100), program_end: 120, file_len: 228 };
        let mut errors = Vec::new();
        check_segments(&segments, &space, &Limits::DEFAULT, |error| {
            errors.push(error.to_string());
            true
        });
        errors
    }

    #[test]
    fn segments_in_bounds_are_accepted() {
        assert_eq!(errors(&[(0, 0), (0, 50), (64, 36), (0, 50), (1 << 60, 0)]), [""; 0]);
    }

    #[test]
    fn segments_out_of_bounds_and_overlaps_are_rejected() {
        assert!(errors(&[(0, 101)])[0].contains("within the file of 228 bytes"));
        assert!(errors(&[(u64::MAX, 2)])[0].contains("overflow"));
        assert!(errors(&[(u64::MAX - 200, 100)])[0].contains("overflow"));
        assert!(errors(&[(0, 50), (49, 3)])[0].starts_with("segments[1]: expected bytes of its own"));
        assert!(errors(&[(0, 50), (0, 49)])[0].contains("bytes of its own"));
        assert_eq!(errors(&[(0, 100), (10, 10), (30, 10)]).len(), 1);
    }
}
