//! Spans of locations, node by node.

use super::{Labels, SectionTables, plural};
use crate::error::Result;
use crate::framing::SectionId;
use crate::section::location_strings::LocationStrings;
use crate::section::strings::LastString;

impl<'a> SectionTables<'_, 'a> {
    /// Describes the location at `offset`.
    pub(super) fn describe_location(&self, offset: u64) -> String {
        self.look_up(SectionId::Locations, offset, || {
            let location = self.file.locations().get(offset)?;
            Ok(location.map_or_else(|| "no location".into(), |location| location.to_string()))
        })
    }

    pub(super) fn label_locations(&self, labels: &mut Labels<'a, '_>) -> Result<()> {
        while labels.cursor.remaining() > 0 {
            let offset = labels.cursor.position();
            // Ensures that the location is well-formed and not nested too deeply.
            self.file.locations().check(offset, &mut LastString::default())?;
            labels.nest(format_args!("locations[{offset}]"), |labels| self.label_location_nodes(labels))?;
        }
        Ok(())
    }

    fn label_location_nodes(&self, labels: &mut Labels<'a, '_>) -> Result<()> {
        let section = self.file.section(SectionId::LocationStrings).unwrap_or_default();
        let strings = LocationStrings::new(section);
        let string = |offset| {
            let look_up = || strings.get(offset).map(|text| format!("{text:?}"));
            self.look_up(SectionId::LocationStrings, offset, look_up)
        };
        let mut missing = 1u64;
        while missing > 0 {
            missing -= 1;
            let kind = labels.label_u8("kind", |kind| {
                let names = ["unknown", "file, line, column", "name", "call site", "fused"];
                names
                    .get(usize::from(kind))
                    .map_or_else(|| format!("unknown kind {kind}"), |name| (*name).into())
            })?;
            missing += match kind {
                1 => {
                    labels.label_vbr("file", string)?;
                    labels.label_vbr("line", |line| format!("line {line}"))?;
                    labels.label_vbr("column", |column| format!("column {column}"))?;
                    0
                }
                2 => {
                    labels.label_vbr("name", string)?;
                    1
                }
                3 => 2,
                4 => labels.label_vbr("count", |count| plural(count, "location"))?,
                _ => 0,
            };
        }
        Ok(())
    }
}
