//! Nodes with every kind of argument: for each operator that the archives of the repository call, that has a kernel or that is
//! decomposed, archives of one node whose arguments, operands and results are replaced one by one.

use super::mutate::{EXTREMES, Records, arguments, forget_sources};
use pteron::KernelRegistry;
use pteron::kernel::ArgType;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use zip::CompressionMethod;

/// A node, and the types of the values that it uses and makes.
#[derive(Clone)]
pub(crate) struct Call {
    pub(crate) target: String,
    node: Value,
    tensors: BTreeMap<String, Value>,
    numbers: BTreeMap<String, Value>,
}

/// One call of each operator of some archives, nested graphs included.
pub(crate) fn of_archives<'a>(archives: impl Iterator<Item = &'a Records>) -> Vec<Call> {
    let mut calls = BTreeMap::new();
    for records in archives {
        for (_, mut model) in records.models() {
            forget_sources(&mut model);
            graph(&model["graph_module"]["graph"], &mut calls);
        }
    }
    calls.into_values().collect()
}

fn graph(json: &Value, calls: &mut BTreeMap<String, Call>) {
    for node in json["nodes"].as_array().into_iter().flatten() {
        let target = node["target"].as_str().unwrap_or_default().to_owned();
        for input in node["inputs"].as_array().into_iter().flatten() {
            graph(&input["arg"]["as_graph"]["graph"], calls);
        }
        let types = |key: &str| -> BTreeMap<String, Value> {
            let all = json[key].as_object().into_iter().flatten();
            let mut names = Vec::new();
            strings(node, &mut names);
            all.filter(|(name, _)| names.contains(&name.as_str()))
                .map(|(n, v)| (n.clone(), v.clone()))
                .collect()
        };
        let (tensors, numbers) = (types("tensor_values"), types("sym_int_values"));
        let call = || Call { target: target.clone(), node: node.clone(), tensors, numbers };
        calls.entry(target.clone()).or_insert_with(call);
    }
}

fn strings<'v>(value: &'v Value, all: &mut Vec<&'v str>) {
    match value {
        Value::String(text) => all.push(text),
        Value::Array(list) => list.iter().for_each(|v| strings(v, all)),
        Value::Object(map) => map.values().for_each(|v| strings(v, all)),
        _ => {}
    }
}

/// A call of each operator of a registry, with arguments made from its schema.
pub(crate) fn of_kernels(kernels: &KernelRegistry) -> Vec<Call> {
    let mut calls = BTreeMap::new();
    for name in kernels.names() {
        let Some(kernel) = kernels.get(name) else { continue };
        let (base, overload) = name.split_once('.').unwrap_or((name, "out"));
        let target = format!(
            "torch.ops.{}.{}",
            base.replace("::", "."),
            if overload == "out" { "default" } else { overload }
        );
        let mut call = Call {
            target: target.clone(),
            node: Value::Null,
            tensors: BTreeMap::new(),
            numbers: BTreeMap::new(),
        };
        let (mut inputs, mut outputs) = (Vec::new(), Vec::new());
        for (i, arg) in kernel.schema().args.iter().enumerate() {
            let tensor = format!("t{i}");
            let is_out = arg.written && arg.name != "self";
            if arg.ty == ArgType::Tensor {
                call.tensors.insert(tensor.clone(), meta(7, &[2, 2, 2]));
            }
            let named = json!({"name": tensor});
            let value = match (arg.ty, arg.list) {
                (ArgType::Tensor, false) => json!({"as_tensor": named}),
                (ArgType::Tensor, true) => json!({"as_tensors": [named]}),
                (ArgType::Int, true) => json!({"as_ints": [1, 1]}),
                (ArgType::Float, true) => json!({"as_floats": [1.0, 1.0]}),
                (ArgType::Bool, true) => json!({"as_bools": [true]}),
                (ArgType::Float | ArgType::Scalar, _) => json!({"as_float": 1.0}),
                (ArgType::Bool, _) => json!({"as_bool": true}),
                (ArgType::Str, _) => json!({"as_string": "mean"}),
                _ => json!({"as_int": 1}),
            };
            match is_out {
                true => outputs.push(value),
                false => inputs.push(json!({"name": arg.name, "arg": value, "kind": 1})),
            }
        }
        call.node = json!({"target": target, "inputs": inputs, "outputs": outputs, "metadata": {}});
        calls.insert(target, call);
    }
    calls.into_values().collect()
}

/// The operators that the compiler decomposes, with the arguments that PyTorch declares for them. Written by
/// `tools/reference/schemas.py`.
const DECOMPOSED: &str = include_str!("schemas.txt");

/// A call of each operator of [`DECOMPOSED`], with arguments made from its schema.
pub(crate) fn of_decompositions() -> Vec<Call> {
    let named = |name: &str| json!({"name": name});
    let call = |line: &str| -> Option<Call> {
        let (operator, rest) = line.split_once(' ')?;
        let (args, outputs) = rest.split_once("-> ")?;
        let mut tensors = BTreeMap::new();
        let mut inputs = Vec::new();
        for (i, arg) in args.split_whitespace().enumerate() {
            let (name, kind) = arg.split_once(':')?;
            let tensor = format!("t{i}");
            let value = match kind {
                "t" => json!({"as_tensor": named(&tensor)}),
                "T" => json!({"as_tensors": [named(&tensor)]}),
                "I" => json!({"as_ints": [1, 1]}),
                "F" => json!({"as_floats": [1.0, 1.0]}),
                "B" => json!({"as_bools": [true]}),
                "i" => json!({"as_int": 1}),
                "f" => json!({"as_float": 1.0}),
                "b" => json!({"as_bool": true}),
                "s" => json!({"as_string": "mean"}),
                _ => json!({"as_none": true}),
            };
            if matches!(kind, "t" | "T") {
                tensors.insert(tensor, meta(7, &[2, 2, 2]));
            }
            inputs.push(json!({"name": name, "arg": value, "kind": 1}));
        }
        let mut results = Vec::new();
        for i in 0..outputs.trim().parse().ok()? {
            let name = format!("r{i}");
            results.push(json!({"as_tensor": named(&name)}));
            tensors.insert(name, meta(7, &[2, 2, 2]));
        }
        let target = format!("torch.ops.{operator}");
        let node = json!({"target": target, "inputs": inputs, "outputs": results, "metadata": {}});
        Some(Call { target, node, tensors, numbers: BTreeMap::new() })
    };
    let calls: Vec<Call> = DECOMPOSED.lines().map(|line| call(line).expect(line)).collect();
    assert!(calls.len() > 500, "only {} operators", calls.len());
    calls
}

fn meta(dtype: u32, sizes: &[i64]) -> Value {
    let number = |n: &i64| json!({"as_int": n});
    let mut strides = vec![1i64; sizes.len()];
    for d in (1..sizes.len()).rev() {
        strides[d - 1] = strides[d].saturating_mul(sizes[d].max(1));
    }
    json!({
        "dtype": dtype, "sizes": sizes.iter().map(number).collect::<Vec<_>>(),
        "strides": strides.iter().map(number).collect::<Vec<_>>(), "storage_offset": {"as_int": 0},
        "requires_grad": false, "device": {"type": "cpu", "index": null}, "layout": 7,
    })
}

/// Types that a tensor is given instead of its own: other ranks, sizes and types of elements, and the same with `dtype`.
fn metas(own: &Value) -> Vec<Value> {
    let dtype = own["dtype"].as_u64().unwrap_or(7) as u32;
    let mut all: Vec<Value> =
        [0, 1, 2, 3, 4, 5, 6, 8, 16, 17].map(|rank| meta(dtype, &vec![2; rank])).to_vec();
    let sizes: [&[i64]; 10] = [
        &[0],
        &[0, 3],
        &[3, 0, 0],
        &[1, 1, 1, 1],
        &[7, 5],
        &[1 << 40],
        &[1 << 20, 1 << 20],
        &[i64::MAX, 2],
        &[1, 1 << 31, 1 << 31, 4],
        &[4096, 4096],
    ];
    all.extend(sizes.map(|sizes| meta(dtype, sizes)));
    let own_sizes: Vec<i64> =
        own["sizes"].as_array().into_iter().flatten().filter_map(|s| s["as_int"].as_i64()).collect();
    for i in 0..own_sizes.len() {
        for n in [0, 1, own_sizes[i].saturating_add(1), 1 << 33] {
            let mut sizes = own_sizes.clone();
            sizes[i] = n;
            all.push(meta(dtype, &sizes));
        }
    }
    all.extend([1, 5, 6, 8, 10, 12, 28, 29].map(|dtype| meta(dtype, &own_sizes)));
    let mut symbolic = own.clone();
    if let Some(first) = symbolic["sizes"].get_mut(0) {
        *first = json!({"as_expr": {"expr_str": "s0", "hint": {"as_int": 2}}});
        all.push(symbolic);
    }
    all
}

impl Call {
    /// The call itself and its variants, each with what it changes.
    pub(crate) fn variants(&self) -> Vec<(String, Call)> {
        let mut all = vec![("as it is".to_owned(), self.clone())];
        let tensor = self.tensors.keys().next().cloned().unwrap_or_default();
        let arguments = arguments(&tensor);
        let count = self.node["inputs"].as_array().map_or(0, Vec::len);
        let outputs = self.node["outputs"].as_array().map_or(0, Vec::len);
        let mut add = |what: String, change: &dyn Fn(&mut Call)| {
            let mut call = self.clone();
            change(&mut call);
            all.push((what, call));
        };
        for i in 0..count {
            for arg in &arguments {
                add(format!("argument {i} is {arg}"), &|call| call.node["inputs"][i]["arg"] = arg.clone());
            }
            add(format!("argument {i} is left out"), &|call| drop(call.inputs().remove(i)));
            add(format!("argument {i} has no name"), &|call| call.node["inputs"][i]["name"] = json!(""));
            add(format!("argument {i} is given twice"), &|call| {
                let again = call.inputs()[i].clone();
                call.inputs().push(again);
            });
            let own = &self.node["inputs"][i]["arg"];
            for (kind, list) in own.as_object().into_iter().flatten() {
                let Some(list) = list.as_array() else { continue };
                for len in [0, 1, list.len() + 1, list.len() * 2, 300] {
                    let longer: Vec<&Value> = list.iter().cycle().take(len).collect();
                    add(format!("argument {i} has {len} elements"), &|call| {
                        call.node["inputs"][i]["arg"] = json!({kind: longer});
                    });
                }
                for j in 0..list.len() {
                    for n in EXTREMES {
                        let element = if kind == "as_sym_ints" { json!({"as_int": n}) } else { json!(n) };
                        add(format!("element {j} of argument {i} is {n}"), &|call| {
                            call.node["inputs"][i]["arg"][kind][j] = element.clone();
                        });
                    }
                }
            }
        }
        for (name, own) in &self.tensors {
            for meta in metas(own) {
                let sizes: Vec<String> =
                    meta["sizes"].as_array().into_iter().flatten().map(|s| s["as_int"].to_string()).collect();
                add(format!("`{name}` has type {} and sizes {}", meta["dtype"], sizes.join("x")), &|call| {
                    call.tensors.insert(name.clone(), meta.clone());
                });
            }
        }
        add("there is no result".to_owned(), &|call| call.node["outputs"] = json!([]));
        for i in 0..outputs {
            add(format!("result {i} is left out"), &|call| {
                call.node["outputs"].as_array_mut().map(|list| list.remove(i));
            });
        }
        add("there is one more result".to_owned(), &|call| {
            call.tensors.insert("more".to_owned(), meta(7, &[2, 2]));
            if let Some(list) = call.node["outputs"].as_array_mut() {
                list.push(json!({"as_tensor": {"name": "more"}}));
            }
        });
        all
    }

    fn inputs(&mut self) -> &mut Vec<Value> {
        self.node["inputs"].as_array_mut().expect("the inputs of a node are a list")
    }

    /// An archive of this node: what it uses are inputs, what it makes are outputs.
    pub(crate) fn archive(&self) -> Vec<u8> {
        let outputs = self.node["outputs"].clone();
        let mut output_names = Vec::new();
        strings(&outputs, &mut output_names);
        let tensors = self.tensors.keys().map(|name| (name, json!({"as_tensor": {"name": name}})));
        let numbers = self.numbers.keys().map(|name| (name, json!({"as_sym_int": {"as_name": name}})));
        let inputs: Vec<Value> = tensors
            .chain(numbers)
            .filter(|(name, _)| !output_names.contains(&name.as_str()))
            .map(|(_, v)| v)
            .collect();
        let mut results = Vec::new();
        for output in outputs.as_array().into_iter().flatten() {
            match output["as_tensors"].as_array() {
                Some(list) => results.extend(list.iter().map(|t| json!({"as_tensor": t}))),
                None => results.push(output.clone()),
            }
        }
        let model = json!({
            "schema_version": {"major": 8, "minor": 14},
            "range_constraints": {"s0": {"min_val": 2, "max_val": 6}},
            "graph_module": {
                "graph": {
                    "inputs": inputs, "outputs": results, "nodes": [self.node],
                    "tensor_values": self.tensors, "sym_int_values": self.numbers,
                },
                "signature": {
                    "input_specs": vec![json!({"user_input": {}}); inputs.len()],
                    "output_specs": vec![json!({"user_output": {}}); results.len()],
                },
                "module_call_graph": [],
            },
        });
        let record = ("m/models/model.json".to_owned(), model.to_string().into_bytes());
        Records(vec![record]).write(CompressionMethod::Stored)
    }
}
