use super::{Contents, meta_of, row_major_layout};
use crate::edit::Output;
use crate::file::Progress;
use crate::show::name;
use crate::{Context, Error, Result, npy, one_line};
use pteron_format::container::Blob;
use pteron_format::ptd::{Builder, Entry, TensorLayout};
use pteron_runtime::{DataLoader, Limits, LoaderReader};
use pteron_tensor::{ScalarType, Tensor, TensorMeta};
use std::collections::BTreeMap;
use std::io::{self, Read};
use std::sync::Arc;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipArchive, ZipWriter};

/// A zip archive that is read through its loader.
pub(super) type Archive = ZipArchive<LoaderReader>;

/// Reads the directory of an `.npz`.
pub(super) fn open(loader: &Arc<dyn DataLoader>) -> Result<Archive> {
    ZipArchive::new(LoaderReader::new(loader)).map_err(|e| Error::bad_file(loader.name(), one_line(&e)))
}

/// Whether a zip archive holds NumPy arrays, and nothing else.
pub(super) fn is_npz(zip: &Archive) -> bool {
    zip.file_names().all(|name| name.ends_with(SUFFIX))
}

/// Reads the arrays of an `.npz`, a zip archive of `.npy` files. The file names without `.npy` are the keys.
///
/// Only the headers are decompressed here; each array is decompressed while it is written.
pub(super) fn read(
    loader: &Arc<dyn DataLoader>,
    mut zip: Archive,
    limits: &Limits,
    progress: &Progress,
) -> Result<Contents> {
    let file = loader.name().to_owned();
    let wrong = |problem: String| Error::bad_file(&file, problem);
    let mut builder = Builder { share: false, ..Builder::new() };
    let most = limits.format.tensor_bytes;
    for index in 0..zip.len() {
        let mut entry = zip.by_index(index).map_err(|e| wrong(one_line(&e)))?;
        let name = entry.name().to_owned();
        let Some(key) = name.strip_suffix(SUFFIX) else {
            return Err(wrong(format!(
                "it holds `{name}`, which is no .npy file; is it an archive of NumPy arrays?"
            )));
        };
        let array = open_npy(&mut entry, most).map_err(|e| wrong(format!("`{name}`: {e}")))?;
        let layout = layout_of(array.meta()).map_err(|e| wrong(format!("`{name}`: {e}")))?;
        let len = array.meta().nbytes() as u64;
        let (loader, progress) = (Arc::clone(loader), progress.clone());
        let blob = Blob::stream(len, move |out| {
            let mut zip = ZipArchive::new(LoaderReader::new(&loader))?;
            let array = open_npy(zip.by_index(index)?, most).and_then(npy::Array::read);
            let mut array = array.map_err(io::Error::other)?;
            let dtype = array.dtype();
            let mut view = array.view_mut();
            npy::swap_on_big_endian(dtype, view.bytes_mut());
            progress.advance(view.bytes().len() as u64);
            out.write_all(view.bytes())
        });
        builder.tensor(key, layout, blob);
    }
    Ok(Contents { builder, metadata: BTreeMap::new() })
}

/// The suffix of array names in an archive.
const SUFFIX: &str = ".npy";

/// Writes entries as an `.npz` without compression, as `numpy.savez` does. Blobs become uint8 vectors.
pub(super) fn write(builder: Builder<'static>, progress: &Progress) -> Result<Output> {
    let bytes = builder.entries.iter().map(|entry| entry.blob.len()).sum();
    // Reject unsupported layouts before any output is written.
    for entry in &builder.entries {
        entry.layout.as_ref().map(meta_of).transpose().context(|| format!("`{}`", name(&entry.key)))?;
        let (len, most) = (entry.key.len(), usize::from(u16::MAX) - SUFFIX.len());
        if len > most {
            return Err(Error::input(format!(
                "the key `{}` is too long for an .npz, in which a name has at most {most} bytes",
                name(&entry.key)
            )));
        }
    }
    Ok(Output::stream(bytes, progress, move |out| {
        let mut zip = ZipWriter::new_stream(out);
        for entry in &builder.entries {
            let array = npy_file(entry).map_err(|e| io::Error::other(one_line(&e)))?;
            let options = SimpleFileOptions::default()
                .compression_method(CompressionMethod::Stored)
                .large_file(array.bytes() >= u64::from(u32::MAX));
            zip.start_file(format!("{}{SUFFIX}", entry.key), options).map_err(io::Error::from)?;
            array.write_to(&mut zip)?;
        }
        zip.finish().map_err(io::Error::from)?;
        Ok(())
    }))
}

/// Converts an entry to a `.npy` file.
fn npy_file(entry: &Entry<'_>) -> Result<npy::File> {
    let meta = match &entry.layout {
        Some(layout) => meta_of(layout)?,
        None => {
            let len = usize::try_from(entry.blob.len()).unwrap_or(usize::MAX);
            TensorMeta::contiguous(ScalarType::Byte, &[len])?
        }
    };
    if meta.nbytes() as u64 != entry.blob.len() {
        let (expected, found_bytes) =
            (meta.nbytes(), usize::try_from(entry.blob.len()).unwrap_or(usize::MAX));
        return Err(pteron_tensor::Error::WrongByteCount { expected, found: found_bytes }.into());
    }
    let mut tensor = Tensor::zeros(meta)?;
    let dtype = tensor.dtype();
    let mut view = tensor.view_mut();
    entry.blob.copy_to(&mut &mut *view.bytes_mut()).context(|| format!("`{}`", entry.key))?;
    npy::swap_on_big_endian(dtype, view.bytes_mut());
    npy::File::new(&tensor)
}

/// Reads the header of an array and checks its size in bytes against the limit `most`.
fn open_npy<R: Read>(entry: R, most: u64) -> Result<npy::Array<R>, String> {
    let array = npy::Array::open(entry)?;
    match array.meta().nbytes() as u64 {
        bytes if bytes > most => Err(format!("it is an array of {bytes} bytes; at most {most} are read")),
        _ => Ok(array),
    }
}

fn layout_of(meta: &TensorMeta) -> Result<TensorLayout, String> {
    let sizes: Vec<u64> = meta.sizes().iter().map(|&size| size as u64).collect();
    Ok(TensorLayout { dim_order: meta.dim_order().to_vec(), ..row_major_layout(meta.dtype(), &sizes)? })
}
