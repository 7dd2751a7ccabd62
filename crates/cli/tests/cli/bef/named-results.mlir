// RUN: translate % | translate - --locations
func.func @ops(%cpu: !corert.ophandler, %ch: !tfrt.chain, %t: !corert.tensorhandle) -> (!tfrt.chain, !corert.tensorhandle) {
  %c0, %r:2 = corert.executeop.seq(%cpu, %ch) "tfrt_test.split"(%t) : 2
  %c1, %s = corert.executeop.seq(%cpu, %c0) "tfrt_test.join"(%r#0, %r#1) : 1
  %c2 = corert.executeop.seq(%cpu, %c1) "tfrt_test.print"(%s)
  %c3, %d = corert.cond %s @yes @no (%c2, %s) : (!corert.tensorhandle) -> (!corert.tensorhandle) loc("":5:5)
  tfrt.return %c3, %d : !tfrt.chain, !corert.tensorhandle
}

func.func @yes(%ch: !tfrt.chain, %t: !corert.tensorhandle) -> (!tfrt.chain, !corert.tensorhandle) {
  tfrt.return %ch, %t : !tfrt.chain, !corert.tensorhandle
}

func.func @no(%ch: !tfrt.chain, %t: !corert.tensorhandle) -> (!tfrt.chain, !corert.tensorhandle) {
  tfrt.return %ch, %t : !tfrt.chain, !corert.tensorhandle
}
