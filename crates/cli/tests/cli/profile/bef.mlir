// One table per function, in the order of the file, and with -v a second one of the call sites of kernels.
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
