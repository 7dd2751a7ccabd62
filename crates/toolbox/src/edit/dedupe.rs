use super::externalize::{Digests, constant_to_keep, is_input_or_output, keys_in_use, make_external};
use super::keys::{DedupBuilder, layout_of};
use super::{Output, finish, revise};
use crate::file::{Progress, blob_source};
use crate::{Error, Result};
use pteron_format::pte::{EValue, TensorData, is_own_key};
use pteron_runtime::Program;
use serde::Serialize;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;

/// The result of [`dedupe`]: programs that share their common weights.
#[derive(Debug, Serialize)]
pub struct Deduped {
    /// The programs, in the order in which they were given.
    pub programs: Vec<Member>,
    /// The keys of the shared weights.
    pub keys: Vec<String>,
    /// Bytes of the shared weights.
    pub bytes_shared: u64,
    /// Bytes of all programs before the edit.
    pub bytes_before: u64,
    /// Bytes of all programs and of the shared weights after the edit.
    pub bytes_after: u64,
    /// The shared weights.
    #[serde(skip)]
    pub data: Output,
}

/// One of the programs that share weights.
#[derive(Debug, Serialize)]
pub struct Member {
    /// The name of the old file.
    pub file: String,
    /// The old file's size in bytes.
    pub bytes_before: u64,
    /// The size of the new file in bytes.
    pub bytes_after: u64,
    /// Descriptions of what the edit could not keep.
    pub lost: Vec<String>,
    /// The new program.
    #[serde(skip)]
    pub program: Output,
}

/// Moves the constants and named data that two or more programs have in common into one `.ptd`.
///
/// Only weights of `at_least` bytes or more are considered, and only those whose length occurs in several programs are
/// read. A tensor's key is its name in the model if the programs agree on it, otherwise the SHA-256 of its bytes. Named
/// data moves only if no program has different bytes under its key. Weights that [`externalize`](super::externalize())
/// leaves in a program stay here too.
pub fn dedupe(programs: &[Program], at_least: u64, progress: &Progress) -> Result<Deduped> {
    let all: Vec<Weights> =
        programs.iter().map(|program| Weights::from_program(program, at_least.max(1))).collect();
    let lengths = items_in_several(all.iter().map(|weights| weights.file_ranges().map(range_len).collect()));
    let total = all.iter().flat_map(Weights::file_ranges).filter(|r| lengths.contains(&range_len(r)));
    progress.begin("comparing", total.map(range_len).sum());
    let mut digests: Vec<Digests<'_>> =
        programs.iter().map(|program| Digests { program, progress, known: HashMap::new() }).collect();
    let mut seen: Vec<HashSet<String>> = Vec::new();
    for (weights, digests) in all.iter().zip(&mut digests) {
        let mut digests_of_program = HashSet::new();
        for range in weights.file_ranges().filter(|range| lengths.contains(&range_len(range))) {
            digests_of_program.insert(digests.sha256(range.clone())?.to_owned());
        }
        seen.push(digests_of_program);
    }
    let shared = items_in_several(seen.into_iter());

    let mut data = DedupBuilder::new(programs.iter().flat_map(keys_in_use).collect());
    let mut revisions = Vec::new();
    let moved_keys = movable_keys(programs, &all, &mut digests, &lengths, &shared)?;
    for ((program, weights), digests) in programs.iter().zip(&all).zip(&mut digests) {
        let bytes_of = blob_source(program.loader(), progress);
        program.require_valid_methods()?;
        let mut revision = revise(program, progress)?;
        let named = program.tables().named_data.iter();
        let segments: HashMap<&str, u32> = named.map(|e| (e.key.as_str(), e.segment_index)).collect();
        // No runtime supports inline constants together with external weights.
        revision.move_constants_to_segment();
        for (key, range) in weights.named.iter().filter(|(key, _)| moved_keys.contains(key.as_str())) {
            let digest = digests.sha256(range.clone())?;
            let alignment =
                segments.get(key.as_str()).map_or(1, |&index| revision.alignment_of_segment(index));
            data.add_blob(key, digest, alignment, || bytes_of(range.clone()))?;
        }
        revision.program.named_data.retain(|entry| !moved_keys.contains(entry.key.as_str()));
        for &(plan, value, ref range) in &weights.constants {
            let Some(digest) = digests.known.get(range).filter(|digest| shared.contains(*digest)) else {
                continue;
            };
            let EValue::Tensor(tensor) = &mut revision.program.execution_plan[plan].values[value] else {
                continue;
            };
            let name = tensor.fully_qualified_name().map(str::to_owned);
            let bytes = || bytes_of(range.clone());
            let key = data.add_tensor(name.as_deref(), digest, layout_of(tensor), bytes);
            make_external(tensor, key);
        }
        revisions.push(revision);
    }
    let keys: Vec<String> = data.keys().map(str::to_owned).collect();
    if keys.is_empty() {
        return Err(Error::input(format!(
            "the programs have no weights of at least {at_least} bytes in common"
        )));
    }
    let bytes_shared = data.bytes();
    let mut members = Vec::new();
    for (program, revision) in programs.iter().zip(revisions) {
        let (output, lost) = finish(revision, progress)?;
        members.push(Member {
            file: program.loader().name().to_owned(),
            bytes_before: program.loader().size(),
            bytes_after: output.bytes(),
            lost,
            program: output,
        });
    }
    let data = Output::named_data(data.into_builder(), progress)?;
    Ok(Deduped {
        keys,
        bytes_shared,
        bytes_before: members.iter().map(|m| m.bytes_before).sum(),
        bytes_after: members.iter().map(|m| m.bytes_after).sum::<u64>() + data.bytes(),
        programs: members,
        data,
    })
}

/// The weights of a program that are candidates for sharing.
struct Weights {
    /// Constants: index of the method, index of the value, and file range.
    constants: Vec<(usize, usize, Range<u64>)>,
    /// Named data: key and file range.
    named: Vec<(String, Range<u64>)>,
}

impl Weights {
    fn from_program(program: &Program, at_least: u64) -> Self {
        let tables = program.tables();
        let mut constants = Vec::new();
        let stays = constant_to_keep(program);
        for (p, plan) in tables.execution_plan.iter().enumerate() {
            for (v, tensor) in
                plan.values.iter().enumerate().filter_map(|(v, value)| Some((v, value.as_tensor()?)))
            {
                if let TensorData::Constant(range) = tables.tensor_data(tensor)
                    && range_len(&range) >= at_least
                    && Some(&range) != stays.as_ref()
                    && !is_input_or_output(plan, v)
                {
                    constants.push((p, v, range));
                }
            }
        }
        let shareable = tables.named_data.iter().filter(|entry| !is_own_key(&entry.key));
        let named = shareable.filter_map(|entry| {
            let range = tables.named_data(&entry.key).filter(|range| range_len(range) >= at_least)?;
            Some((entry.key.clone(), range))
        });
        Self { constants, named: named.collect() }
    }

    fn file_ranges(&self) -> impl Iterator<Item = &Range<u64>> {
        self.constants.iter().map(|(_, _, range)| range).chain(self.named.iter().map(|(_, range)| range))
    }
}

fn range_len(range: &Range<u64>) -> u64 {
    range.end - range.start
}

/// The items that occur in at least two of the sets.
fn items_in_several<T: std::hash::Hash + Eq>(sets: impl Iterator<Item = HashSet<T>>) -> HashSet<T> {
    let mut counts: HashMap<T, usize> = HashMap::new();
    for item in sets.flatten() {
        *counts.entry(item).or_default() += 1;
    }
    counts.into_iter().filter(|(_, count)| *count > 1).map(|(item, _)| item).collect()
}

/// The keys of named data whose bytes are in `shared`, and which have the same bytes in every program with the key.
fn movable_keys(
    programs: &[Program],
    all: &[Weights],
    digests: &mut [Digests<'_>],
    lengths: &HashSet<u64>,
    shared: &HashSet<String>,
) -> Result<HashSet<String>> {
    let mut meanings: BTreeMap<&str, HashSet<Option<String>>> = BTreeMap::new();
    for ((program, weights), digests) in programs.iter().zip(all).zip(digests) {
        for entry in &program.tables().named_data {
            let range = weights.named.iter().find(|(key, _)| *key == entry.key).map(|(_, range)| range);
            let meaning = match range.filter(|range| lengths.contains(&range_len(range))) {
                Some(range) => Some(digests.sha256(range.clone())?.to_owned()),
                None => None,
            };
            meanings.entry(&entry.key).or_default().insert(meaning);
        }
    }
    let movable = meanings.into_iter().filter(|(_, meanings)| {
        meanings.len() == 1
            && meanings.iter().flatten().all(|digest| shared.contains(digest))
            && !meanings.contains(&None)
    });
    Ok(movable.map(|(key, _)| key.to_owned()).collect())
}
