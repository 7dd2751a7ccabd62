// USAGE: bef run % --work-queue x:2
func.func @add(%a: i32, %b: i32) -> i32 {
  %s = tfrt.add.i32 %a, %b
  tfrt.return %s : i32
}

func.func @main() -> i32 {
  %one = tfrt.constant.i32 1
  %two = tfrt.constant.i32 2
  %s = tfrt.call @add(%one, %two) : (i32, i32) -> i32
  tfrt.return %s : i32
}
