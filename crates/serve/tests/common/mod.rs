//! Temporary folders with models of the repository's test data.
#![allow(dead_code, unreachable_pub)]

use pteron::format::container::Blob;
use pteron::format::ptd::Builder;
use pteron::{NamedDataMap, PtdDataMap, ScalarType};
use pteron_serve::{InferRequest, InputTensor, OutputTensor, Service, ServiceOptions};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

#[cfg(feature = "net")]
pub mod call;
#[cfg(feature = "net")]
pub mod socket;

/// Longer than any test takes.
pub const FOREVER: Duration = Duration::from_secs(3600);

pub fn testdata(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata").join(path)
}

const MLP: &str = "dynamic/mlp/model.pte";
const LINEAR: &str = "corpus/tiny/ModuleLinear_extconst";

/// A temporary folder that is removed on drop.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new() -> Self {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let name = format!("serve-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// A folder with `mlp`: three layers and a softmax, f32[<=9, 12] to f32[<=9, 3].
    pub fn with_mlp() -> Self {
        let folder = Self::new();
        folder.copy(MLP, "mlp.pte");
        folder
    }

    /// A folder with `linear`, f32[3] to f32[3], with its weights in a `.ptd`.
    pub fn with_linear() -> Self {
        let folder = Self::new();
        folder.copy(&format!("{LINEAR}/model.pte"), "linear.pte");
        folder.write_weights(1.0);
        folder
    }

    pub fn copy(&self, from: &str, to: &str) {
        let to = self.0.join(to);
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::copy(testdata(from), &to).unwrap();
        let mut permissions = fs::metadata(&to).unwrap().permissions();
        #[allow(clippy::permissions_set_readonly_false)]
        permissions.set_readonly(false);
        fs::set_permissions(&to, permissions).unwrap();
    }

    /// Replaces `linear.ptd` atomically by its original weights times `factor`.
    pub fn write_weights(&self, factor: f32) {
        let map = PtdDataMap::open(testdata(&format!("{LINEAR}/_default_external_constant.ptd"))).unwrap();
        let mut builder = Builder::new();
        for entry in &map.tables().named_data {
            let bytes = map.data(&entry.key).unwrap();
            let scaled = bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap()) * factor);
            let bytes: Vec<u8> = scaled.flat_map(f32::to_le_bytes).collect();
            builder.tensor(&entry.key, entry.tensor_layout.clone().unwrap(), Blob::bytes(bytes));
        }
        let mut file = Vec::new();
        builder.write(&mut file).unwrap();
        fs::write(self.0.join("new"), file).unwrap();
        fs::rename(self.0.join("new"), self.0.join("linear.ptd")).unwrap();
    }

    pub fn options(&self) -> ServiceOptions {
        ServiceOptions::new(&self.0, pteron::load_options())
    }

    pub fn service(&self) -> Arc<Service> {
        self.service_with(self.options())
    }

    pub fn service_with(&self, options: ServiceOptions) -> Arc<Service> {
        let service = Service::start(options).unwrap();
        assert_eq!(service.load_all().unwrap(), []);
        service
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

pub fn bytes(elements: &[f32]) -> Vec<u8> {
    elements.iter().flat_map(|x| x.to_le_bytes()).collect()
}

pub fn floats(tensor: &OutputTensor) -> Vec<f32> {
    tensor.data.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}

/// A request with arbitrary elements, which depend on `seed`.
pub fn request(model: &str, shape: &[usize], seed: usize) -> InferRequest {
    let elements: Vec<f32> =
        (0..shape.iter().product()).map(|i| ((i + 31 * seed) as f32 * 0.7).sin()).collect();
    let data = Box::new(bytes(&elements));
    let input =
        InputTensor { name: "input_0".to_owned(), dtype: ScalarType::Float, shape: shape.to_vec(), data };
    InferRequest { model: model.to_owned(), inputs: vec![input], ..InferRequest::default() }
}

/// The first output of a program for the input of [`request`], without a server.
pub fn expected(path: &str, shape: &[usize], seed: usize) -> Vec<f32> {
    let mut module = pteron::open(testdata(path)).unwrap();
    let elements: Vec<f32> =
        (0..shape.iter().product()).map(|i| ((i + 31 * seed) as f32 * 0.7).sin()).collect();
    let outputs = module.forward(&[pteron::Tensor::from_slice(shape, &elements).unwrap().into()]).unwrap();
    outputs[0].as_tensor().unwrap().to_vec().unwrap()
}

/// The output of `mlp` for the input of [`request`].
pub fn expected_of_mlp(rows: usize, seed: usize) -> Vec<f32> {
    expected(MLP, &[rows, 12], seed)
}

pub fn assert_close(found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len());
    for (a, b) in found.iter().zip(expected) {
        assert!((a - b).abs() <= 1e-5 * (1.0 + b.abs()), "{found:?} is not {expected:?}");
    }
}
