// The --init function is not part of the runs; a selected function that cannot run is named.
// TIMES:
// RUN: profile % --init setup --functions main,setup,takes --work-queue mt:2
func.func @setup() -> i32 {
  %one = tfrt.constant.i32 1
  tfrt.return %one : i32
}

func.func @takes(%a: i32) -> i32 {
  tfrt.return %a : i32
}

func.func @main() -> i32 {
  %two = tfrt.constant.i32 2
  tfrt.return %two : i32
}
