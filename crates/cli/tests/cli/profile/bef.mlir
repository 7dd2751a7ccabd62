// A function a table, and with -v a second one of the places of kernels. The order of functions is that of the file.
// TIMES:
// RUN: profile % -v --repeat 3
func.func @constant() -> i32 {
  %one = tfrt.constant.i32 1
  tfrt.return %one : i32
}

func.func @not_run(%a: i32) -> i32 {
  tfrt.return %a : i32
}

func.func @none() {
  tfrt.return
}

func.func @chain() -> !tfrt.chain {
  %ch = tfrt.new.chain
  tfrt.return %ch : !tfrt.chain
}
