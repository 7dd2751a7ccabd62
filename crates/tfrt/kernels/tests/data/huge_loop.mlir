func.func @main() -> !tfrt.chain {
  %from = tfrt.constant.i32 0
  %to = tfrt.constant.i32 2147483647
  %one = tfrt.constant.i32 1
  %done = tfrt.parallel_for.i32 %from to %to fixed %one {
    %c = tfrt.new.chain
    tfrt.return %c : !tfrt.chain
  }
  tfrt.return %done : !tfrt.chain
}
