//! Loads a version of a model.

use crate::generation::{Generation, Instances};
use crate::metadata::Signature;
use crate::options::ServiceOptions;
use crate::probe;
use crate::refusal::{Reason, Refusal, Result};
use crate::repository::{Files, Source};
use crate::stateful::StatefulModules;
use pteron::tools::task;
use pteron::{DataLoader, FileLoader, Limits, LoadOptions, MergedDataMap, NamedDataMap};
use pteron::{Program, PtdDataMap, SharedMethod};
use std::sync::Arc;

/// The maximum number of different batch sizes; other batches are padded. A region with dynamic shapes keeps the prepared form of at most
/// four shapes.
const MAX_BATCH_SIZES: usize = 4;

/// Loads a version of a model. Before its method is loaded, `make_room` is called with the memory that it takes.
pub(crate) fn load_version(
    files: &Files,
    options: &ServiceOptions,
    stateful: &StatefulModules,
    number: u64,
    make_room: &(dyn Fn(u64) -> Result<()> + Sync),
) -> Result<Generation> {
    let load = LoadOptions { data: open_data(files, &options.load.limits)?, ..options.load.clone() };
    let file = open_source(&files.program)?;
    let file =
        pteron::compile::program(file, &load.kernels, &load.limits).map_err(Refusal::from_load_error)?;
    let program_bytes = file.size();
    let program = Program::load(file, &load.limits).map_err(Refusal::from_load_error)?;
    let name = method_name(&program, files.config.method.as_deref())?;
    let meta = program.method_meta(&name).map_err(Refusal::from_load_error)?;
    let signature = Signature::new(&meta, &files.config)?;
    let instances = if files.config.share_memory_arenas { 1 } else { options.workers.max(1) as u64 };
    let arenas = meta.memory_arenas().fold(0, u64::saturating_add).saturating_mul(instances);
    let data_bytes = files.data.iter().filter_map(|source| Some(source.path.metadata().ok()?.len()));
    let memory = data_bytes.fold(program_bytes.saturating_add(arenas), u64::saturating_add);
    make_room(memory)?;
    let method = match files.config.share_memory_arenas {
        true => Instances::Stateful(stateful.open(files, &program, load)?),
        false => {
            let method = program.load_method(&name, load).and_then(SharedMethod::new);
            Instances::Shared(Box::new(method.map_err(Refusal::from_load_error)?))
        }
    };
    let task = task::of(&program).map_err(|e| Refusal::from_error(Reason::Failed, &e))?;
    let mut generation = Generation {
        task,
        number,
        method,
        program,
        method_name: name,
        signature,
        batches: Vec::new(),
        unbatched: None,
        files: files.clone(),
        memory,
    };
    let most = files.config.max_batch.unwrap_or(options.max_batch);
    if most > 1 && files.config.share_memory_arenas {
        generation.unbatched = Some("its methods share their state".to_owned());
    } else if most > 1 {
        match probe::find_max_batch(&generation) {
            Ok(bound) => generation.batches = batch_sizes(most.min(bound)),
            Err(reason) => generation.unbatched = Some(reason),
        }
    }
    Ok(generation)
}

/// The batch sizes in ascending order: `most`, a half, a quarter… of it, rounded up; at most [`MAX_BATCH_SIZES`].
fn batch_sizes(most: usize) -> Vec<usize> {
    let halves = std::iter::successors(Some(most), |&n| (n > 1).then_some(n.div_ceil(2)));
    let mut sizes: Vec<_> = halves.take(MAX_BATCH_SIZES).collect();
    sizes.reverse();
    sizes
}

fn open_source(source: &Source) -> Result<Arc<dyn DataLoader>> {
    Ok(Arc::new(FileLoader::named(&source.path, &source.name).map_err(Refusal::from_load_error)?))
}

fn open_data(files: &Files, limits: &Limits) -> Result<Option<Arc<dyn NamedDataMap>>> {
    let open = |source| {
        let map = PtdDataMap::load(open_source(source)?, limits).map_err(Refusal::from_load_error)?;
        Ok(Arc::new(map) as Arc<dyn NamedDataMap>)
    };
    let mut maps: Vec<_> = files.data.iter().map(open).collect::<Result<_>>()?;
    Ok(match maps.len() {
        0 | 1 => maps.pop(),
        _ => Some(Arc::new(MergedDataMap::new(maps).map_err(Refusal::from_load_error)?)),
    })
}

fn method_name(program: &Program, wanted: Option<&str>) -> Result<String> {
    if let Some(name) = wanted {
        return Ok(name.to_owned());
    }
    let names: Vec<&str> = program.method_names().collect();
    match program.default_method().map_err(Refusal::from_load_error)? {
        Some(name) => Ok(name.to_owned()),
        None => Err(Refusal::invalid(format!(
            "the program has the methods {}, and no `forward`: name one in pteron.json, \"method\"",
            names.join(", ")
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batch_sizes_are_halves_of_the_maximum() {
        assert_eq!(batch_sizes(8), [1, 2, 4, 8]);
        assert_eq!(batch_sizes(32), [4, 8, 16, 32]);
        assert_eq!(batch_sizes(9), [2, 3, 5, 9]);
        assert_eq!(batch_sizes(2), [1, 2]);
    }
}
