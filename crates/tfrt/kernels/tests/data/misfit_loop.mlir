func.func @loop() -> !tfrt.chain {
  %a = tfrt.constant.i32 0
  %b = tfrt.constant.i32 2147483647
  %c = tfrt.constant.i32 1
  %d = "tfrt.parallel_for.i32"(%a, %b, %c) ({
    %ch = tfrt.new.chain
    tfrt.return %ch : !tfrt.chain
  }) : (i32, i32, i32) -> !tfrt.chain
  tfrt.return %d : !tfrt.chain
}
