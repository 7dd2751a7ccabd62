// FAIL: bef run % --functions 'add(1, 2.5)'
func.func @add(%a: i32, %b: i32) -> i32 {
  %s = tfrt.add.i32 %a, %b
  tfrt.return %s : i32
}
