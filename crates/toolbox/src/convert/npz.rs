use crate::edit::Output;
use crate::file::Progress;
use crate::{Error, Result, npy};
use format::container::Blob;
use format::ptd::{Builder, TensorLayout};
use runtime::{DataLoader, Limits, Purpose};
use std::io::{self, Read, Seek, SeekFrom};
use std::sync::Arc;
use tensor::TensorMeta;
use zip::ZipArchive;

/// A `.ptd` of the arrays of an `.npz`: a zip archive of `.npy` files. Their names are the keys.
///
/// An array is unpacked when it is written, and once before to see what it is.
pub(super) fn to_data(loader: &Arc<dyn DataLoader>, limits: &Limits, progress: &Progress) -> Result<Output> {
    let file = loader.name().to_owned();
    let wrong = |problem: String| Error::bad_file(&file, problem);
    let archive = || ZipArchive::new(LoaderReader { loader: Arc::clone(loader), at: 0 });
    let mut zip = archive().map_err(|e| wrong(e.to_string()))?;
    let mut builder = Builder { share: false, ..Builder::new() };
    let most = limits.format.tensor_bytes;
    for index in 0..zip.len() {
        let mut entry = zip.by_index(index).map_err(|e| wrong(e.to_string()))?;
        let name = entry.name().to_owned();
        let Some(key) = name.strip_suffix(".npy") else {
            return Err(wrong(format!(
                "it holds `{name}`, which is no .npy file; is it an archive of NumPy arrays?"
            )));
        };
        let array = read_array(&mut entry, most).map_err(|e| wrong(format!("`{name}`: {e}")))?;
        let layout = layout_of(array.meta()).map_err(|e| wrong(format!("`{name}`: {e}")))?;
        let len = array.nbytes() as u64;
        let (loader, progress) = (Arc::clone(loader), progress.clone());
        let blob = Blob::stream(len, move |out| {
            let mut zip = ZipArchive::new(LoaderReader { loader: Arc::clone(&loader), at: 0 })?;
            let array = read_array(&mut zip.by_index(index)?, most).map_err(io::Error::other)?;
            let mut bytes = array.bytes().to_vec();
            npy::swap_on_big_endian(array.dtype(), &mut bytes);
            progress.advance(bytes.len() as u64);
            out.write_all(&bytes)
        });
        builder.tensor(key, layout, blob);
    }
    Output::data_within(builder, limits, progress)
}

fn read_array(entry: &mut impl Read, most: u64) -> Result<tensor::Tensor, String> {
    let mut bytes = Vec::new();
    entry.take(most.saturating_add(1)).read_to_end(&mut bytes).map_err(|e| e.to_string())?;
    if bytes.len() as u64 > most {
        return Err(format!("it unpacks to more than {most} bytes"));
    }
    npy::parse(&bytes)
}

fn layout_of(meta: &TensorMeta) -> Result<TensorLayout, String> {
    let sizes: Result<Vec<i32>, _> = meta.sizes().iter().map(|&size| i32::try_from(size)).collect();
    Ok(TensorLayout {
        scalar_type: meta.dtype() as i8,
        sizes: sizes.map_err(|_| format!("sizes {:?} are too large", &**meta.sizes()))?,
        dim_order: meta.dim_order().to_vec(),
    })
}

/// A loader as a file that is read.
struct LoaderReader {
    loader: Arc<dyn DataLoader>,
    at: u64,
}

impl Read for LoaderReader {
    fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
        let len = self.loader.size().saturating_sub(self.at).min(target.len() as u64) as usize;
        self.loader.load_into(self.at, &mut target[..len], Purpose::Named).map_err(io::Error::other)?;
        self.at += len as u64;
        Ok(len)
    }
}

impl Seek for LoaderReader {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let at = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::End(by) => self.loader.size().checked_add_signed(by),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
        };
        self.at = at.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        Ok(self.at)
    }
}
