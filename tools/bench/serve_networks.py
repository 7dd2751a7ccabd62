"""Two networks with random weights and a batch dimension, as torch.export archives and as ONNX with the same weights.

`perceptron` has three layers with 19 MB of weights: a single row reads each weight for two operations, so that it is bound by
memory bandwidth and a batch costs little more than one row. `convolutions` has seven layers over 32x32 images and is bound by
computation. Needs only Python's standard library; ONNX export needs the package `onnx`.
"""

import array
import json
import random
import zipfile

MAX_ROWS = 32


def perceptron():
    sizes = [256, 2048, 2048, 10]
    layers = [("linear", (n, m)) for m, n in zip(sizes, sizes[1:])]
    return [256], layers


def convolutions():
    channels = [(3, 32, 1), (32, 64, 2), (64, 64, 1), (64, 128, 2), (128, 128, 1), (128, 128, 2)]
    layers = [("conv2d", (n, m, 3, 3), stride) for m, n, stride in channels]
    return [3, 32, 32], [*layers, ("mean",), ("linear", (10, 128))]


NETWORKS = {"perceptron": perceptron, "convolutions": convolutions}


def weights(layers):
    """The elements of each layer's weight and bias."""
    generator, found = random.Random(7), []
    for layer in layers:
        if len(layer) == 1:
            found.append(None)
            continue
        count, inputs = 1, 1
        for size in layer[1]:
            count *= size
        for size in layer[1][1:]:
            inputs *= size
        scale = (6 / inputs) ** 0.5
        weight = array.array("f", (generator.uniform(-scale, scale) for _ in range(count)))
        found.append((weight, array.array("f", (generator.uniform(-0.1, 0.1) for _ in range(layer[1][0])))))
    return found


def sizes_after(layer, sizes):
    """The output sizes of a layer, without the batch dimension."""
    if layer[0] == "linear":
        return [layer[1][0]]
    if layer[0] == "mean":
        return sizes[:1]
    return [layer[1][0], *(-(-size // layer[2]) for size in sizes[1:])]


def write_archive(name, path):
    """Writes an archive in the format of torch.export.save."""
    sizes, layers = NETWORKS[name]()
    batch = {"as_expr": {"expr_str": "Symbol('s31', positive=True, integer=True)", "hint": {"as_int": 4}}}

    def meta(sizes, leading=()):
        strides = [1]
        for size in reversed(sizes[1:] if not leading else sizes):
            strides.insert(0, strides[0] * size)
        dims = [*leading, *({"as_int": size} for size in sizes)]
        return {
            "dtype": 7, "sizes": dims, "requires_grad": False, "device": {"type": "cpu", "index": None},
            "strides": [{"as_int": stride} for stride in strides], "storage_offset": {"as_int": 0}, "layout": 7,
        }

    tensor = lambda name: {"as_tensor": {"name": name}}
    values, nodes, parameters, config, blobs = {"x": meta(sizes, [batch])}, [], [], {}, {}

    def node(target, arguments, sizes):
        output = f"v{len(nodes)}"
        inputs = [{"name": key, "arg": value, "kind": 1} for key, value in arguments]
        nodes.append({
            "target": f"torch.ops.aten.{target}", "inputs": inputs, "outputs": [tensor(output)], "metadata": {},
            "is_hop_single_tensor_return": None, "name": output,
        })
        values[output] = meta(sizes, [batch])
        return output

    last = "x"
    for i, (layer, given) in enumerate(zip(layers, weights(layers))):
        sizes = sizes_after(layer, sizes)
        if layer[0] == "mean":
            last = node("mean.dim", [("self", tensor(last)), ("dim", {"as_ints": [2, 3]})], sizes)
            continue
        for kind, elements, dims in (("weight", given[0], layer[1]), ("bias", given[1], layer[1][:1])):
            parameter, blob = f"p_{i}_{kind}", f"weight_{len(blobs)}"
            values[parameter] = meta(list(dims))
            parameters.append({"parameter": {"arg": {"name": parameter}, "parameter_name": f"{i}.{kind}"}})
            config[f"{i}.{kind}"] = {"path_name": blob, "is_param": True, "use_pickle": False, "tensor_meta": values[parameter]}
            blobs[blob] = elements.tobytes()
        arguments = [("input", tensor(last)), ("weight", tensor(f"p_{i}_weight")), ("bias", tensor(f"p_{i}_bias"))]
        if layer[0] == "conv2d":
            arguments += [("stride", {"as_ints": [layer[2]] * 2}), ("padding", {"as_ints": [1, 1]})]
        last = node(f"{layer[0]}.default", arguments, sizes)
        if i + 1 < len(layers):
            last = node("relu.default", [("self", tensor(last))], sizes)
    graph = {
        "inputs": [*(tensor(spec["parameter"]["arg"]["name"]) for spec in parameters), tensor("x")],
        "outputs": [tensor(last)], "nodes": nodes, "tensor_values": values, "sym_int_values": {}, "sym_bool_values": {},
        "is_single_tensor_return": False, "custom_obj_values": {}, "sym_float_values": {},
    }
    leaf = {"type": None, "context": None, "children_spec": []}
    both = [{"type": "builtins.tuple", "context": "null", "children_spec": [leaf]},
            {"type": "builtins.dict", "context": "[]", "children_spec": []}]
    calls = {
        "inputs": [], "outputs": [], "forward_arg_names": ["x"], "out_spec": json.dumps([1, leaf]),
        "in_spec": json.dumps([1, {"type": "builtins.tuple", "context": "null", "children_spec": both}]),
    }
    signature = {
        "input_specs": [*parameters, {"user_input": {"arg": tensor("x")}}],
        "output_specs": [{"user_output": {"arg": tensor(last)}}],
    }
    model = {
        "graph_module": {
            "graph": graph, "signature": signature, "module_call_graph": [{"fqn": "", "signature": calls}],
            "metadata": {}, "treespec_namedtuple_fields": {},
        },
        "opset_version": {"aten": 10}, "range_constraints": {"s31": {"min_val": 1, "max_val": MAX_ROWS}},
        "schema_version": {"major": 8, "minor": 20}, "verifiers": ["TRAINING"], "torch_version": "2.15.0", "guards_code": [],
    }
    with zipfile.ZipFile(path, "w") as archive:
        for blob, elements in blobs.items():
            archive.writestr(f"model/data/weights/{blob}", elements)
        archive.writestr("model/data/weights/model_weights_config.json", json.dumps({"config": config}))
        archive.writestr("model/data/constants/model_constants_config.json", json.dumps({"config": {}}))
        archive.writestr("model/models/model.json", json.dumps(model))
        for file, text in (("archive_format", "pt2"), ("archive_version", "0"), (".data/version", "6\n"), ("byteorder", "little")):
            archive.writestr(f"model/{file}", text)


def write_onnx(name, path):
    import onnx
    from onnx import TensorProto, helper

    sizes, layers = NETWORKS[name]()
    nodes, constants, last = [], [], "input_0"

    def node(kind, inputs, **attributes):
        output = f"v{len(nodes)}"
        nodes.append(helper.make_node(kind, inputs, [output], **attributes))
        return output

    given_sizes = sizes
    for i, (layer, given) in enumerate(zip(layers, weights(layers))):
        sizes = sizes_after(layer, sizes)
        if layer[0] == "mean":
            last = node("Flatten", [node("GlobalAveragePool", [last])])
            continue
        for kind, elements, dims in (("weight", given[0], layer[1]), ("bias", given[1], layer[1][:1])):
            constants.append(helper.make_tensor(f"{i}.{kind}", TensorProto.FLOAT, dims, elements.tobytes(), raw=True))
        inputs = [last, f"{i}.weight", f"{i}.bias"]
        last = node("Gemm", inputs, transB=1) if layer[0] == "linear" else node("Conv", inputs, strides=[layer[2]] * 2, pads=[1] * 4)
        if i + 1 < len(layers):
            last = node("Relu", [last])
    value = lambda name, sizes: helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", *sizes])
    graph = helper.make_graph(nodes, name, [value("input_0", given_sizes)], [value(last, sizes)], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    onnx.checker.check_model(model)
    onnx.save(model, path)
