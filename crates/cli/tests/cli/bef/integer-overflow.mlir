// Sums that overflow wrap around; the mean of 256 bytes is divided by 256, which is no byte, and that of 255 by 255.
// RUN: run %
func.func @sums() {
  %ch0 = tfrt.new.chain
  %a = "tfrt_test.sum_array_attr.i32"() { a = "2147483647", b = [1 : i32] } : () -> i32
  %ch1 = tfrt.print.i32 %a, %ch0
  %b = "tfrt_test.sum_array_attr.i64"() { a = "-9223372036854775808", b = [-2 : i64, 1 : i64] } : () -> i64
  %ch2 = tfrt.print.i64 %b, %ch1
  tfrt.return
}

func.func @register() -> !tfrt.chain {
  %null = "corert.create_null_op_handler"() : () -> !corert.ophandler
  %cpu = "corert.create_cpu_op_handler"(%null) : (!corert.ophandler) -> !corert.ophandler
  %ch = corert.register_op_handler %cpu "cpu"
  tfrt.return %ch : !tfrt.chain
}

func.func @means() {
  %ch = tfrt.new.chain
  %cpu = corert.get_op_handler %ch "cpu"
  %a = corert.executeop(%cpu) "tfrt_test.create_dense_tensor"() { shape = [256 : i64], values = [-1 : i8] } : 1
  %b = corert.executeop(%cpu) "tfrt_test.reduce_mean"(%a) { axis = 0 : i32 } : 1
  %ch0 = "corert.print_tensorhandle"(%b, %ch) : (!corert.tensorhandle, !tfrt.chain) -> !tfrt.chain
  %c = corert.executeop(%cpu) "tfrt_test.create_dense_tensor"() { shape = [255 : i64], values = [-128 : i8] } : 1
  %d = corert.executeop(%cpu) "tfrt_test.reduce_mean"(%c) { axis = 0 : i32 } : 1
  %ch1 = "corert.print_tensorhandle"(%d, %ch0) : (!corert.tensorhandle, !tfrt.chain) -> !tfrt.chain
  %e = corert.executeop(%cpu) "tfrt_test.create_dense_tensor"() { shape = [3 : i64], values = [4 : i8, -9 : i8, -2 : i8] } : 1
  %f = corert.executeop(%cpu) "tfrt_test.reduce_mean"(%e) { axis = 0 : i32 } : 1
  %ch2 = "corert.print_tensorhandle"(%f, %ch1) : (!corert.tensorhandle, !tfrt.chain) -> !tfrt.chain
  tfrt.return
}
