//! `pteron.Graph`: programs that are built call by call.

use crate::backend::registries;
use crate::convert;
use crate::errors::{Failure, Result};
use crate::opened::lock;
use crate::tensor::{borrow_array, parse_dtype};
use pteron::compile::exported::{
    Argument, Bounds, ExportedProgram, IntArgument, Size, TensorSpec, VarId, VarType,
};
use pteron::compile::{GraphBuilder, Options};
use pteron::{DimOrder, Tensor};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyComplex, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple};
use std::sync::{Arc, Mutex};

/// The graph of a method that is being built.
#[pyclass(frozen, name = "Graph", module = "pteron")]
pub(crate) struct PyGraph(Mutex<GraphBuilder>);

/// A value of a graph that is being built.
#[pyclass(frozen, name = "Value", module = "pteron")]
pub(crate) struct PyValue {
    graph: Py<PyGraph>,
    var: VarId,
}

/// The elements of a constant, which share the memory of a tensor.
struct Elements(Tensor);

impl AsRef<[u8]> for Elements {
    fn as_ref(&self) -> &[u8] {
        self.0.bytes()
    }
}

impl PyGraph {
    /// Builds the exported program of the method.
    pub(crate) fn finish(&self) -> Result<ExportedProgram> {
        Ok(lock(&self.0).clone().finish()?)
    }

    /// Converts a size in a tensor's shape: an integer, or a `Dim`.
    fn size(&self, size: &Bound<'_, PyAny>) -> PyResult<Size> {
        if let Ok(size) = size.extract::<i64>() {
            return Ok(Size::Int(size));
        }
        let dim = || -> PyResult<(String, Bounds)> {
            let bounds =
                Bounds { min: size.getattr("min")?.extract()?, max: size.getattr("max")?.extract()? };
            Ok((size.getattr("name")?.extract()?, bounds))
        };
        let (name, bounds) = dim().map_err(|_| PyTypeError::new_err("a size is an int or a pteron.Dim"))?;
        Ok(lock(&self.0).symbol(&name, bounds).map_err(Failure::from)?)
    }

    fn spec(&self, dtype: &Bound<'_, PyAny>, shape: &Bound<'_, PyAny>) -> PyResult<TensorSpec> {
        let sizes = shape.try_iter()?.map(|size| self.size(&size?)).collect::<PyResult<_>>()?;
        Ok(TensorSpec::contiguous(parse_dtype(dtype)?, sizes))
    }

    fn add_constant(&self, tensor: Tensor, name: Option<&str>) -> PyResult<VarId> {
        let spec = TensorSpec {
            dtype: tensor.dtype(),
            sizes: tensor.sizes().iter().map(|&size| Size::Int(size as i64)).collect(),
            dim_order: *tensor.meta().dim_order(),
        };
        let added = lock(&self.0).constant(name, spec, Arc::new(Elements(tensor)));
        Ok(added.map_err(Failure::from)?)
    }
}

/// The id of the graph's value that an object stands for; `None` if the object is no value.
fn var_of_graph(graph: &Bound<'_, PyGraph>, object: &Bound<'_, PyAny>) -> PyResult<Option<VarId>> {
    let Ok(value) = object.cast_exact::<PyValue>() else { return Ok(None) };
    let value = value.get();
    match value.graph.is(graph) {
        true => Ok(Some(value.var)),
        false => Err(PyValueError::new_err("a value of another graph")),
    }
}

/// Converts an argument of an operator's call; arrays become constants of the graph.
fn call_argument(graph: &Bound<'_, PyGraph>, object: &Bound<'_, PyAny>) -> PyResult<Argument> {
    if let Some(var) = var_of_graph(graph, object)? {
        return Ok(Argument::Var(var));
    }
    Ok(match () {
        () if object.is_none() => Argument::None,
        () if object.is_instance_of::<PyBool>() => Argument::Bool(object.extract()?),
        () if object.is_instance_of::<PyInt>() => Argument::Int(object.extract()?),
        () if object.is_instance_of::<PyFloat>() => Argument::Float(object.extract()?),
        () if object.is_instance_of::<PyString>() => Argument::Str(object.extract()?),
        () if object.is_instance_of::<PyComplex>() => {
            let (re, im) = (object.getattr("real")?.extract()?, object.getattr("imag")?.extract()?);
            Argument::Complex(re, im)
        }
        () if is_list(object) => list_argument(graph, object)?,
        () => Argument::Var(array_constant(graph, object)?),
    })
}

fn is_list(object: &Bound<'_, PyAny>) -> bool {
    object.is_instance_of::<PyList>() || object.is_instance_of::<PyTuple>()
}

fn array_constant(graph: &Bound<'_, PyGraph>, array: &Bound<'_, PyAny>) -> PyResult<VarId> {
    if borrow_array(array)?.is_none() {
        let kind = array.get_type().name()?.to_string();
        return Err(PyTypeError::new_err(format!("a {kind} is no argument of an operator")));
    }
    graph.get().add_constant(convert::to_tensor(array, None, None)?, None)
}

/// Converts a list of numbers, of strings, or of values and arrays, with `None` for absent ones.
fn list_argument(graph: &Bound<'_, PyGraph>, object: &Bound<'_, PyAny>) -> PyResult<Argument> {
    let mut items = Vec::new();
    for item in object.try_iter()? {
        let item = item?;
        if is_list(&item) {
            return Err(PyTypeError::new_err(
                "no operator takes lists of lists; an array becomes a constant",
            ));
        }
        items.push(call_argument(graph, &item)?);
    }
    let optional = |item: &Argument| match item {
        Argument::None => Some(None),
        item => item.var().map(Some),
    };
    let int = |item: &Argument| match item {
        Argument::Int(number) => Some(IntArgument::Int(*number)),
        item => item.var().map(IntArgument::Var),
    };
    let float = |item: &Argument| match item {
        Argument::Float(number) => Some(*number),
        Argument::Int(number) => Some(*number as f64),
        _ => None,
    };
    let flag = |item: &Argument| if let Argument::Bool(flag) = item { Some(*flag) } else { None };
    let text = |item: &Argument| if let Argument::Str(text) = item { Some(text.clone()) } else { None };
    let has_values = items.iter().any(|item| item.var().is_some());
    let argument = match () {
        () if has_values && items.iter().all(|item| item.var().is_some()) => {
            items.iter().map(Argument::var).collect::<Option<_>>().map(Argument::Vars)
        }
        () if items.is_empty() => Some(Argument::Ints(Vec::new())),
        () => None,
    };
    let argument = argument
        .or_else(|| items.iter().map(int).collect::<Option<_>>().map(Argument::Ints))
        .or_else(|| items.iter().map(optional).collect::<Option<_>>().map(Argument::OptionalVars))
        .or_else(|| items.iter().map(float).collect::<Option<_>>().map(Argument::Floats))
        .or_else(|| items.iter().map(flag).collect::<Option<_>>().map(Argument::Bools))
        .or_else(|| items.iter().map(text).collect::<Option<_>>().map(Argument::Strs));
    argument.ok_or_else(|| PyTypeError::new_err("a list has numbers, strings, or values and arrays"))
}

#[pymethods]
impl PyGraph {
    #[new]
    #[pyo3(signature = (name="forward"))]
    fn py_new(name: &str) -> Self {
        Self(Mutex::new(GraphBuilder::new(name, registries().kernels())))
    }

    /// The name of the method.
    #[getter]
    fn name(&self) -> String {
        lock(&self.0).program().name.clone()
    }

    /// Adds an input of the method, which the caller passes.
    #[pyo3(signature = (name, dtype, shape, *, dim_order=None))]
    fn input(
        slf: &Bound<'_, Self>,
        name: &str,
        dtype: &Bound<'_, PyAny>,
        shape: &Bound<'_, PyAny>,
        dim_order: Option<Vec<u8>>,
    ) -> PyResult<PyValue> {
        let mut spec = slf.get().spec(dtype, shape)?;
        if let Some(order) = dim_order {
            spec.dim_order = DimOrder::new(&order).map_err(Failure::from)?;
        }
        let var = lock(&slf.get().0).input(name, spec).map_err(Failure::from)?;
        Ok(PyValue { graph: slf.clone().unbind(), var })
    }

    /// Adds a constant with a copy of an array's elements.
    #[pyo3(signature = (array, name=None, *, dtype=None, shape=None))]
    fn constant(
        slf: &Bound<'_, Self>,
        array: &Bound<'_, PyAny>,
        name: Option<&str>,
        dtype: Option<&Bound<'_, PyAny>>,
        shape: Option<Vec<usize>>,
    ) -> PyResult<PyValue> {
        let dtype = dtype.map(parse_dtype).transpose()?;
        let var = slf.get().add_constant(convert::to_tensor(array, dtype, shape.as_deref())?, name)?;
        Ok(PyValue { graph: slf.clone().unbind(), var })
    }

    /// Calls an operator and returns its result, or a tuple if it has no result or several.
    #[pyo3(signature = (operator, *args, results=None, **named))]
    fn call<'py>(
        slf: &Bound<'py, Self>,
        operator: &str,
        args: &Bound<'py, PyTuple>,
        results: Option<Vec<(Bound<'py, PyAny>, Bound<'py, PyAny>)>>,
        named: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        let args = args.iter().map(|arg| call_argument(slf, &arg)).collect::<PyResult<Vec<_>>>()?;
        let mut names: Vec<(String, Argument)> = Vec::new();
        for (name, arg) in named.into_iter().flatten() {
            names.push((name.extract()?, call_argument(slf, &arg)?));
        }
        let named: Vec<(&str, Argument)> =
            names.iter().map(|(name, arg)| (name.as_str(), arg.clone())).collect();
        let graph = slf.get();
        let specs = results.map(|results| {
            results.iter().map(|(dtype, shape)| graph.spec(dtype, shape)).collect::<PyResult<Vec<_>>>()
        });
        let vars = match specs {
            None => lock(&graph.0).call(operator, &args, &named),
            Some(specs) => lock(&graph.0).call_as(operator, &args, &named, specs?),
        };
        let vars = vars.map_err(Failure::from)?;
        let value = |var| Bound::new(py, PyValue { graph: slf.clone().unbind(), var });
        match vars[..] {
            [var] => Ok(value(var)?.into_any()),
            _ => {
                let values = vars.into_iter().map(value).collect::<PyResult<Vec<_>>>()?;
                Ok(PyTuple::new(py, values)?.into_any())
            }
        }
    }

    /// Adds values as outputs of the method.
    #[pyo3(signature = (*values))]
    fn output(slf: &Bound<'_, Self>, values: &Bound<'_, PyTuple>) -> PyResult<()> {
        for object in values {
            let Some(var) = var_of_graph(slf, &object)? else {
                return Err(PyTypeError::new_err("an output is a value of the graph"));
            };
            lock(&slf.get().0).output(var).map_err(Failure::from)?;
        }
        Ok(())
    }

    fn __str__(&self) -> String {
        lock(&self.0).program().to_string()
    }

    fn __repr__(&self) -> String {
        let graph = lock(&self.0);
        let calls = graph.program().graph.nodes.len();
        format!("Graph('{}', {calls} calls)", pteron_toolbox::show::name(&graph.program().name))
    }
}

impl PyValue {
    /// The name and type of the value in the graph.
    fn var(&self) -> Result<(Arc<str>, VarType)> {
        let graph = lock(&self.graph.get().0);
        let var = graph.var(self.var)?;
        Ok((Arc::clone(&var.name), var.ty.clone()))
    }
}

#[pymethods]
impl PyValue {
    #[getter]
    fn graph(&self, py: Python<'_>) -> Py<PyGraph> {
        self.graph.clone_ref(py)
    }

    #[getter]
    fn name(&self) -> PyResult<String> {
        Ok(self.var()?.0.to_string())
    }

    /// The name of the value's element type; `None` for a number.
    #[getter]
    fn dtype(&self) -> PyResult<Option<&'static str>> {
        Ok(match self.var()?.1 {
            VarType::Tensor(spec) => Some(spec.dtype.name()),
            _ => None,
        })
    }

    /// The sizes of the value, with text for sizes that depend on the caller; `None` for a number.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyTuple>>> {
        let VarType::Tensor(spec) = self.var()?.1 else { return Ok(None) };
        let size = |size: &Size| match size {
            Size::Int(size) => Ok(size.into_pyobject(py)?.into_any()),
            Size::Sym(_) => Ok(size.to_string().into_pyobject(py)?.into_any()),
        };
        let sizes = spec.sizes.iter().map(size).collect::<PyResult<Vec<_>>>()?;
        Ok(Some(PyTuple::new(py, sizes)?))
    }

    fn __repr__(&self) -> PyResult<String> {
        let (name, ty) = self.var()?;
        Ok(format!("Value({}: {ty})", pteron_toolbox::show::name(&name)))
    }
}

/// The exported programs of a graph, or of each graph in a sequence; `None` if the object is neither.
pub(crate) fn graph_programs(source: &Bound<'_, PyAny>) -> PyResult<Option<Vec<ExportedProgram>>> {
    if let Ok(graph) = source.cast_exact::<PyGraph>() {
        return Ok(Some(vec![graph.get().finish()?]));
    }
    if !is_list(source) {
        return Ok(None);
    }
    let mut programs = Vec::new();
    for graph in source.try_iter()? {
        let graph = graph?;
        let graph = graph
            .cast_exact::<PyGraph>()
            .map_err(|_| PyTypeError::new_err("a program is compiled of graphs, a path or bytes"))?;
        programs.push(graph.get().finish()?);
    }
    if programs.is_empty() {
        return Err(PyValueError::new_err("a program is compiled of at least one graph"));
    }
    Ok(Some(programs))
}

/// Keeps those methods that the options select; fails if one of them does not exist.
pub(crate) fn select_methods(
    mut programs: Vec<ExportedProgram>,
    options: &Options,
) -> Result<Vec<ExportedProgram>> {
    let names: Vec<&str> = programs.iter().map(|program| program.name.as_str()).collect();
    if let Some(name) = options.methods.iter().find(|name| !names.contains(&name.as_str())) {
        let hint = pteron_toolbox::did_you_mean(name, names);
        return Err(Failure::Input(format!("there is no graph `{name}`{hint}")));
    }
    programs.retain(|program| options.methods.is_empty() || options.methods.contains(&program.name));
    Ok(programs)
}
