//! `pteron.Module` and `pteron.Method`: programs, methods and calls.

use crate::call::{call_method, value_list};
use crate::errors::{Failure, Result as Done};
use crate::meta;
use crate::opened::{OpenProgram, Signature, lock};
use crate::picture;
use crate::settings::{Settings, Source, extract_paths};
use crate::state::State;
use crate::tensor::PyTensor;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyMapping, PyTuple};
use std::collections::BTreeMap;
use std::mem::ManuallyDrop;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

/// A program as a Python object; it is opened on first use.
#[pyclass(frozen, name = "Module", module = "pteron", weakref)]
pub(crate) struct PyModule {
    source: Source,
    settings: Mutex<Settings>,
    /// The arguments of the constructor, kept for pickling.
    arguments: (Py<PyAny>, Py<PyDict>),
    opened: Mutex<Option<Arc<OpenProgram>>>,
}

impl PyModule {
    /// The open program; opens it if that has not been done in this process.
    pub(crate) fn open_once(&self, py: Python<'_>) -> PyResult<Arc<OpenProgram>> {
        // Do not wait for the lock with the GIL held: its holder may need the GIL.
        if let Ok(guard) = self.opened.try_lock()
            && let Some(opened) = &*guard
            && !opened.is_stale()
        {
            return Ok(Arc::clone(opened));
        }
        py.detach(|| self.open_now()).map_err(PyErr::from)
    }

    fn open_now(&self) -> Done<Arc<OpenProgram>> {
        let mut guard = lock(&self.opened);
        let opened = match guard.take() {
            Some(opened) if !opened.is_stale() => opened,
            Some(stale) => {
                // Leak the program of the parent process: its threads do not exist in this process, and dropping it would wait for them.
                let stale = ManuallyDrop::new(stale);
                Arc::new(stale.reopen(&self.source, &self.settings())?)
            }
            None => Arc::new(OpenProgram::new(&self.source, &self.settings())?),
        };
        *guard = Some(Arc::clone(&opened));
        Ok(opened)
    }

    fn settings(&self) -> Settings {
        lock(&self.settings).clone()
    }
}

#[pymethods]
impl PyModule {
    #[new]
    #[pyo3(signature = (source, **options))]
    fn py_new(source: &Bound<'_, PyAny>, options: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        let py = source.py();
        let settings = Mutex::new(Settings::from_options(options)?);
        let options_copy = match options {
            Some(options) => options.copy()?,
            None => PyDict::new(py),
        };
        let parsed = Source::from_object(source)?;
        // A buffer may change later: pickle the bytes that were read.
        let source = match &parsed {
            Source::Path(path) => path.into_pyobject(py)?.str()?.into_any(),
            Source::Bytes(bytes) => (&**bytes).into_pyobject(py)?.into_any(),
        };
        let arguments = (source.unbind(), options_copy.unbind());
        Ok(Self { source: parsed, settings, arguments, opened: Mutex::default() })
    }

    /// Opens the program now rather than on first use.
    fn open(&self, py: Python<'_>) -> PyResult<()> {
        self.open_once(py).map(drop)
    }

    /// The path of the program's file, if it was opened by path.
    #[getter]
    fn path(&self) -> Option<PathBuf> {
        match &self.source {
            Source::Path(path) => Some(path.clone()),
            Source::Bytes(_) => None,
        }
    }

    #[getter]
    fn method_names(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        Ok(self.open_once(py)?.program.method_names().map(str::to_owned).collect())
    }

    /// The task metadata that the program stores, as a dictionary; `None` if it stores none.
    #[getter]
    fn task<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let opened = self.open_once(py)?;
        let text: Option<String> = py.detach(|| -> Done<_> {
            let task = pteron_toolbox::task::of(&opened.program)?;
            Ok(task.map(|task| task.to_json()).transpose()?)
        })?;
        text.map(|text| py.import("json")?.call_method1("loads", (text,))).transpose()
    }

    /// A picture, given as the bytes or the path of its file, as an input of the default method. It is prepared as `pictures` says,
    /// or as the program's task metadata says.
    #[pyo3(signature = (file, input=0, pictures=None))]
    fn picture(
        &self,
        py: Python<'_>,
        file: &Bound<'_, PyAny>,
        input: usize,
        pictures: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<PyTensor> {
        let opened = self.open_once(py)?;
        let preparation = pictures.map(picture::preparation).transpose()?;
        let meta = opened.program.method_meta(&opened.default_method()?).map_err(Failure::from)?;
        let source = Source::from_object(file)?;
        Ok(PyTensor::new(
            py.detach(|| picture::to_input(&opened.program, &meta, input, &source, preparation))?,
        ))
    }

    /// The names of the methods that are not valid, each with its problem. A method without a name is
    /// `execution_plan[N]`.
    #[getter]
    fn invalid_methods(&self, py: Python<'_>) -> PyResult<BTreeMap<String, String>> {
        let opened = self.open_once(py)?;
        let described = opened.program.invalid_methods().iter().map(|method| {
            let name = method.name.clone().unwrap_or_else(|| format!("execution_plan[{}]", method.index));
            (name, method.error.to_string())
        });
        Ok(described.collect())
    }

    #[pyo3(signature = (*args, out=None, **kwargs))]
    fn __call__<'py>(
        &self,
        py: Python<'py>,
        args: &Bound<'py, PyTuple>,
        out: Option<&Bound<'py, PyAny>>,
        kwargs: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyList>> {
        let opened = self.open_once(py)?;
        let signature = opened.default_signature()?;
        call_method(py, &opened, &signature, args, kwargs, out)
    }

    #[pyo3(signature = (*args, out=None, **kwargs))]
    fn forward<'py>(
        &self,
        py: Python<'py>,
        args: &Bound<'py, PyTuple>,
        out: Option<&Bound<'py, PyAny>>,
        kwargs: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyList>> {
        let opened = self.open_once(py)?;
        let signature = opened.signature("forward")?;
        call_method(py, &opened, &signature, args, kwargs, out)
    }

    /// The method with this name, as an object that can be called.
    fn method(slf: &Bound<'_, Self>, name: &str) -> PyResult<PyMethod> {
        let signature = slf.get().open_once(slf.py())?.signature(name)?;
        Ok(PyMethod { module: slf.clone().unbind(), signature })
    }

    /// The inputs of the default method, as `MethodMeta.inputs`.
    #[getter]
    fn inputs<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        Self::metadata(slf)?.getattr("inputs")
    }

    /// The outputs of the default method, as `MethodMeta.outputs`.
    #[getter]
    fn outputs<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        Self::metadata(slf)?.getattr("outputs")
    }

    /// The metadata of the default method.
    #[getter]
    fn metadata<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        metadata(slf, &slf.get().open_once(slf.py())?.default_method()?)
    }

    /// The metadata of a method as JSON.
    fn _meta(&self, py: Python<'_>, name: &str) -> PyResult<String> {
        let opened = self.open_once(py)?;
        let meta = opened.program.method_meta(name).map_err(Failure::from)?;
        Ok(meta::method_json(&meta)?.to_string())
    }

    /// Loads a method now rather than on its first call.
    fn load_method(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        let opened = self.open_once(py)?;
        let signature = opened.signature(name)?;
        Ok(py.detach(|| opened.with_method(&signature, |_| Ok(())))?)
    }

    /// A copy of the state of each loaded method, by method name.
    fn snapshot<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let opened = self.open_once(py)?;
        let states = py.detach(|| {
            opened.with_module(|module| {
                let names: Vec<String> = module.loaded_methods().map(|m| m.name().to_owned()).collect();
                let state =
                    |name: String| Ok((name.clone(), module.with_method(&name, |m| State::copy_of(m))?));
                names.into_iter().map(state).collect::<Done<Vec<_>>>()
            })
        })?;
        let all = PyDict::new(py);
        for (name, state) in states {
            all.set_item(name, state.into_dict(py)?)?;
        }
        Ok(all)
    }

    /// Restores the state in a snapshot. Methods that the snapshot does not contain get their initial state, unless the
    /// methods share their state.
    fn restore(&self, py: Python<'_>, state: &Bound<'_, PyAny>) -> PyResult<()> {
        let opened = self.open_once(py)?;
        let mut states = Vec::new();
        for item in state.cast::<PyMapping>()?.items()? {
            let (name, tensors): (String, Bound<'_, PyAny>) = item.extract()?;
            let signature = opened.signature(&name)?;
            let metas: BTreeMap<_, _> = py.detach(|| {
                opened.with_module(|module| {
                    module.with_method(&signature.name, |method| {
                        Ok(method.state().map(|(key, view)| (key, view.meta().clone())).collect())
                    })
                })
            })?;
            states.push((name, State::from_mapping(&tensors, &metas)?));
        }
        Ok(py.detach(|| {
            opened.with_module(|module| {
                for (name, state) in &states {
                    module.with_method(name, |method| method.restore(state))?;
                }
                if module.shares_memory_arenas() {
                    return Ok(());
                }
                let others: Vec<String> = module.loaded_methods().map(|m| m.name().to_owned()).collect();
                for name in others.iter().filter(|name| !states.iter().any(|(known, _)| known == *name)) {
                    module.unload_method(name);
                }
                Ok(())
            })
        })?)
    }

    /// Writes the state of a method to a `.ptd` file.
    #[pyo3(signature = (path, method=None))]
    fn save_checkpoint(&self, py: Python<'_>, path: PathBuf, method: Option<String>) -> PyResult<()> {
        let opened = self.open_once(py)?;
        let name = method.map_or_else(|| opened.default_method(), Ok)?;
        Ok(py.detach(|| opened.with_module(|module| Ok(module.save_checkpoint(&name, path)?)))?)
    }

    /// Reads the state of a method from a `.ptd` file.
    #[pyo3(signature = (path, method=None))]
    fn load_checkpoint(&self, py: Python<'_>, path: PathBuf, method: Option<String>) -> PyResult<()> {
        let opened = self.open_once(py)?;
        let name = method.map_or_else(|| opened.default_method(), Ok)?;
        Ok(py.detach(|| opened.with_module(|module| Ok(module.load_checkpoint(&name, path)?)))?)
    }

    /// Replaces the weights that are stored outside of the program by those in `.ptd` files.
    #[pyo3(signature = (*data))]
    fn swap_data(&self, py: Python<'_>, data: &Bound<'_, PyTuple>) -> PyResult<()> {
        let opened = self.open_once(py)?;
        let files = match data.len() {
            1 => extract_paths(&data.get_item(0)?)?,
            _ => extract_paths(data.as_any())?,
        };
        py.detach(|| {
            let map = self.settings().open_data(&files)?;
            let map =
                map.ok_or_else(|| Failure::Input("swap_data takes one .ptd file or more".to_owned()))?;
            opened.with_module(|module| Ok(module.swap_data(map)?))
        })?;
        self.arguments.1.bind(py).set_item("data", &files)?;
        lock(&self.settings).data = files;
        Ok(())
    }

    /// Writes the executions recorded since the last call (see `record` of `pteron.load`) as an ETDump, and their
    /// tensors if recorded.
    #[pyo3(signature = (etdump, debug_buffer=None))]
    fn write_etdump(&self, py: Python<'_>, etdump: PathBuf, debug_buffer: Option<PathBuf>) -> PyResult<()> {
        let opened = self.open_once(py)?;
        Ok(py.detach(|| crate::runs::write_recording(&opened, &etdump, debug_buffer.as_ref()))?)
    }

    /// The inputs and expected outputs of a test case of a bundled program.
    #[pyo3(signature = (index=0, method=None))]
    fn case<'py>(
        &self,
        py: Python<'py>,
        index: usize,
        method: Option<String>,
    ) -> PyResult<(Bound<'py, PyList>, Bound<'py, PyList>)> {
        let opened = self.open_once(py)?;
        let name = method.map_or_else(|| opened.default_method(), Ok)?;
        let Some(bundle) = &opened.bundle else {
            return Err(PyValueError::new_err("the program is not bundled with test cases (.bpte)"));
        };
        let inputs = bundle.inputs(&name, index).map_err(Failure::from)?;
        let suite = bundle.suites.iter().find(|suite| suite.method_name == name);
        let expected =
            suite.and_then(|suite| suite.test_cases.get(index)).map(|case| &case.expected_outputs[..]);
        let expected = pteron_toolbox::bundle::values(expected.unwrap_or_default()).map_err(Failure::from)?;
        Ok((value_list(py, inputs)?, value_list(py, expected)?))
    }

    /// The number of test cases of a method.
    #[pyo3(signature = (method=None))]
    fn num_cases(&self, py: Python<'_>, method: Option<String>) -> PyResult<usize> {
        let opened = self.open_once(py)?;
        let name = method.map_or_else(|| opened.default_method(), Ok)?;
        let suites = opened.bundle.iter().flat_map(|bundle| &bundle.suites);
        Ok(suites.filter(|suite| suite.method_name == name).map(|suite| suite.test_cases.len()).sum())
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        let (source, options) = &slf.get().arguments;
        let make = py.import("pteron._unpickle")?.getattr("module")?;
        Ok((make, (source.clone_ref(py), options.clone_ref(py))).into_pyobject(py)?.into_any())
    }

    /// The source, and the methods' signatures if the program is open.
    fn __repr__(slf: &Bound<'_, Self>) -> String {
        let this = slf.get();
        let source = match &this.source {
            Source::Path(path) => format!("{:?}", path.display().to_string()),
            Source::Bytes(bytes) => format!("of {} bytes", bytes.len()),
        };
        let opened = this.opened.try_lock().ok().and_then(|opened| opened.clone());
        let names: Vec<String> =
            opened.iter().flat_map(|o| o.program.method_names()).map(str::to_owned).collect();
        let shown = names.iter().take(MAX_SHOWN).map(|name| signature_text(slf, name));
        match shown.collect::<PyResult<Vec<_>>>() {
            Ok(shown) if !shown.is_empty() => {
                let more = if names.len() > MAX_SHOWN { ", …" } else { "" };
                format!("<pteron.Module {source}: {}{more}>", shown.join(", "))
            }
            _ => format!("<pteron.Module {source}>"),
        }
    }
}

/// The most methods that the `repr` of a module shows.
const MAX_SHOWN: usize = 4;

/// The metadata of a method, a `pteron.MethodMeta`.
fn metadata<'py>(module: &Bound<'py, PyModule>, name: &str) -> PyResult<Bound<'py, PyAny>> {
    module.py().import("pteron._records")?.call_method1("method_meta", (module, name))
}

/// A method with the types of its inputs and outputs, as `forward(x: float32[1, 8]) -> (float32[1, 10])`.
fn signature_text(module: &Bound<'_, PyModule>, name: &str) -> PyResult<String> {
    metadata(module, name)?.call_method0("__str__")?.extract()
}

/// A method of a program.
#[pyclass(frozen, name = "Method", module = "pteron")]
pub(crate) struct PyMethod {
    module: Py<PyModule>,
    signature: Arc<Signature>,
}

#[pymethods]
impl PyMethod {
    #[getter]
    fn name(&self) -> &str {
        &self.signature.name
    }

    #[getter]
    fn module(&self, py: Python<'_>) -> Py<PyModule> {
        self.module.clone_ref(py)
    }

    #[pyo3(signature = (*args, out=None, **kwargs))]
    fn __call__<'py>(
        &self,
        py: Python<'py>,
        args: &Bound<'py, PyTuple>,
        out: Option<&Bound<'py, PyAny>>,
        kwargs: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyList>> {
        let opened = self.module.get().open_once(py)?;
        call_method(py, &opened, &self.signature, args, kwargs, out)
    }

    /// The inputs, as `MethodMeta.inputs`.
    #[getter]
    fn inputs<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.metadata(py)?.getattr("inputs")
    }

    /// The outputs, as `MethodMeta.outputs`.
    #[getter]
    fn outputs<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.metadata(py)?.getattr("outputs")
    }

    /// The method's metadata.
    #[getter]
    fn metadata<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        metadata(self.module.bind(py), &self.signature.name)
    }

    /// A copy of a parameter or buffer of the method, by the name that the exporter gave it.
    fn attribute(&self, py: Python<'_>, name: &str) -> PyResult<PyTensor> {
        let opened = self.module.get().open_once(py)?;
        let tensor = py.detach(|| {
            opened.with_method(&self.signature, |method| {
                let missing =
                    || Failure::Input(format!("method `{}` has no attribute `{name}`", method.name()));
                Ok(method.attribute(name).ok_or_else(missing)?.to_tensor()?)
            })
        })?;
        Ok(PyTensor::new(tensor))
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        let make = py.import("pteron._unpickle")?.getattr("method")?;
        let this = slf.get();
        Ok((make, (this.module.clone_ref(py), this.name())).into_pyobject(py)?.into_any())
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        let shown = signature_text(self.module.bind(py), &self.signature.name);
        format!("<pteron.Method {}>", shown.unwrap_or_else(|_| format!("`{}`", self.signature.name)))
    }
}
