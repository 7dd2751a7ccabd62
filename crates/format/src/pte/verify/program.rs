use super::Verifier;
use crate::ErrorKind;
use crate::container::check_segments;
use crate::flatbuffer::Path;
use crate::pte::SubsegmentOffsets;
use std::collections::HashMap;

impl Verifier<'_> {
    /// Checks the root table of the program.
    pub(super) fn check_program(&mut self) {
        let program = self.program;
        let root = Path::ROOT;
        if program.version > 0 {
            self.fail(
                ErrorKind::Newer,
                root.field("version"),
                "0, the schema version this reader supports",
                program.version,
            );
        }
        let (space, limits) = (self.header.segment_space(), self.limits);
        check_segments(&program.segments, &space, limits, |error| self.push(error));

        let path = root.field("execution_plan");
        let mut names = HashMap::new();
        let named = self.plans.iter().enumerate().filter_map(|(index, plan)| Some((index, plan.ok()?)));
        for (index, plan) in named {
            if let Some(first) = names.get(plan.name.as_str()) {
                let expected = format!("a name other than that of execution_plan[{first}]");
                self.method = Some(index);
                self.fail_invalid(
                    path.index(index).field("name"),
                    expected,
                    format_args!("`{}`", pteron_text::text(&plan.name)),
                );
                self.method = None;
            } else {
                names.insert(plan.name.as_str(), index);
            }
        }

        let inline = program.constant_buffer.iter().map(|buffer| buffer.storage.end - buffer.storage.start);
        if let Some(constants) = &program.constant_segment {
            let path = root.field("constant_segment");
            self.check_subsegments(path, constants);
            if !constants.offsets.is_empty() && inline.clone().any(|bytes| bytes > 0) {
                let actual =
                    format_args!("{} beside {}", program.constant_buffer.len(), constants.offsets.len());
                let path = root.field("constant_buffer");
                self.fail_invalid(path, "inline constants or a constant segment, not both", actual);
            }
        }
        let path = root.field("mutable_data_segments");
        for (index, mutable) in program.mutable_data_segments.iter().enumerate() {
            self.check_subsegments(path.index(index), mutable);
        }

        let path = root.field("named_data");
        let mut keys = HashMap::new();
        for (index, entry) in program.named_data.iter().enumerate() {
            let path = path.index(index);
            if let Some(first) = keys.insert(entry.key.as_str(), index) {
                let expected = format!("a key other than that of named_data[{first}]");
                self.fail_invalid(
                    path.field("key"),
                    expected,
                    format_args!("`{}`", pteron_text::text(&entry.key)),
                );
            }
            self.check_index(
                path.field("segment_index"),
                entry.segment_index,
                program.segments.len(),
                "segments",
            );
        }
    }

    /// Checks a segment of several tensors: that it exists, and that the start of every tensor is in its bounds.
    fn check_subsegments(&mut self, path: Path<'_>, subsegments: &SubsegmentOffsets) {
        let segments = &self.program.segments;
        // A table without entries refers to nothing; old files have one in addition to inline constants.
        if subsegments.offsets.is_empty() {
            return;
        }
        let index = self.check_index(
            path.field("segment_index"),
            subsegments.segment_index,
            segments.len(),
            "segments",
        );
        let Some(index) = index else {
            return;
        };
        let size = segments[index].size;
        for (i, &offset) in subsegments.offsets.iter().enumerate() {
            if offset > size {
                let expected = format!("an offset into the {size} bytes of segments[{index}]");
                self.fail_invalid(path.field("offsets").index(i), expected, offset);
            }
        }
    }
}
