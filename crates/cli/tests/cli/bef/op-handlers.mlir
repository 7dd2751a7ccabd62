// RUN: bef run %
func.func @register() -> !tfrt.chain {
  %null = "corert.create_null_op_handler"() : () -> !corert.ophandler
  %cpu = "corert.create_cpu_op_handler"(%null) : (!corert.ophandler) -> !corert.ophandler
  %ch = corert.register_op_handler %cpu "cpu"
  tfrt.return %ch : !tfrt.chain
}

func.func @types() -> !tfrt.chain {
  %ch0 = tfrt.new.chain
  %cpu = corert.get_op_handler %ch0 "cpu"
  %a = corert.executeop(%cpu) "tfrt_test.create_dense_tensor"() { shape = [2 : i64, 2 : i64], values = [1.0 : f32, 4.0 : f32, 5.0 : f32, 2.0 : f32] } : 1
  %m = corert.executeop(%cpu) "tfrt_test.argmax"(%a) { axis = 1 : i32 } : 1
  %ch1 = "corert.print_tensorhandle"(%m, %ch0) : (!corert.tensorhandle, !tfrt.chain) -> !tfrt.chain
  %e = corert.executeop(%cpu) "tfrt_test.equal"(%a, %a) : 1
  %ch2 = "corert.print_tensorhandle"(%e, %ch1) : (!corert.tensorhandle, !tfrt.chain) -> !tfrt.chain
  %s = corert.executeop(%cpu) "tfrt_test.create_from_scalar"() { shape = [2 : i64], value = 3 : i32 } : 1
  %d = corert.executeop(%cpu) "tfrt_test.identity_dense_only"(%s) : 1
  %ch3 = "corert.print_tensorhandle"(%d, %ch2) : (!corert.tensorhandle, !tfrt.chain) -> !tfrt.chain
  tfrt.return %ch3 : !tfrt.chain
}

func.func @strings() -> !corert.tensorhandle {
  %ch0 = tfrt.new.chain
  %cpu = corert.get_op_handler %ch0 "cpu"
  %s = corert.const_string_tensor {shape = [1], value = ["text"]}
  // expected-error @+1 {{Cannot implictly convert StringHost to DenseHost}}
  %d = corert.executeop(%cpu) "tfrt_test.identity_dense_only"(%s) : 1
  tfrt.return %d : !corert.tensorhandle
}

func.func @texts() -> !corert.tensorhandle {
  %ch0 = tfrt.new.chain
  %cpu = corert.get_op_handler %ch0 "cpu"
  %a = corert.executeop(%cpu) "tfrt_test.create_from_scalar"() { shape = [2 : i64], value = 3 : i32 } : 1
  %b = corert.executeop(%cpu) "tfrt_test.create_from_scalar"() { shape = [3 : i64], value = 3 : i32 } : 1
  // expected-error @+1 {{arguments of test.add must have same shape}}
  %c = corert.executeop(%cpu) "tfrt_test.add"(%a, %b) : 1
  tfrt.return %c : !corert.tensorhandle
}

func.func @transfers() -> !corert.tensorhandle {
  %ch0 = tfrt.new.chain
  %cpu = corert.get_op_handler %ch0 "cpu"
  %device = "tfrt.get_device"(%ch0) {device_name = "CPU:0"} : (!tfrt.chain) -> !tfrt.device
  %dense = "tfrt_test.get_static_tensor_type"() {tensor_type = "DenseHost"} : () -> !tfrt.tensor_type
  %a = corert.executeop(%cpu) "tfrt_test.create_from_scalar"() { shape = [2 : i64], value = 3 : i32 } : 1
  %b = corert.transfer %a, %device, %dense
  %ch1 = "corert.print_tensorhandle"(%b, %ch0) : (!corert.tensorhandle, !tfrt.chain) -> !tfrt.chain
  %s = corert.const_string_tensor {shape = [1], value = ["text"]}
  // expected-error @+1 {{cannot find conversion function for [StringHost]->[DenseHost]}}
  %t = corert.transfer %s, %device, %dense
  tfrt.return %t : !corert.tensorhandle
}

func.func @composite(%ch: !tfrt.chain) -> (!tfrt.chain, i32) {
  %one = tfrt.constant.i32 1
  tfrt.return %ch, %one : !tfrt.chain, i32
}

func.func @checked() -> !corert.op {
  // expected-error @+1 {{The function should only returns type [!corert.tensorhandle]. But the 0-th results is type [i32].}}
  %op = "corert.make_composite_op"() {fn = @composite} : () -> !corert.op
  tfrt.return %op : !corert.op
}
