// RUN: bef run %
"builtin.module"() ({
  "func.func"() <{function_type = () -> !tfrt.chain, sym_name = "main"}> ({
    %0 = "tfrt.new.chain"() : () -> !tfrt.chain
    %1 = "tfrt_dht.create_uninitialized_tensor.i32.1"() <{shape = [3]}> : () -> !tfrt_tensor.tensor
    %2 = "tfrt_dht.fill_tensor_with_constant.i32"(%1, %0) <{value = 7 : i32}> : (!tfrt_tensor.tensor, !tfrt.chain) -> !tfrt.chain
    %3 = "tfrt_dht.print_tensor"(%1, %2) : (!tfrt_tensor.tensor, !tfrt.chain) -> !tfrt.chain
    "tfrt.return"(%3) : (!tfrt.chain) -> ()
  }) : () -> ()
}) : () -> ()
