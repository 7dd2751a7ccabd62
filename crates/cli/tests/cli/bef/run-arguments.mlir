// RUN: bef run % --functions 'scaled(6, true),add(-1,2),main,seq(40)'
func.func @add(%a: i32, %b: i32) -> i32 {
  %s = tfrt.add.i32 %a, %b
  tfrt.return %s : i32
}

func.func @scaled(%a: i64, %c: i1) -> (i64, i1) {
  %s = tfrt.add.i64 %a, %a
  tfrt.return %s, %c : i64, i1
}

func.func @seq(%ch: !tfrt.chain, %a: i32) -> i32 {
  %s = tfrt.add.i32 %a, %a
  tfrt.return %s : i32
}

func.func @main() -> i32 {
  %one = tfrt.constant.i32 1
  tfrt.return %one : i32
}
