// FAIL: profile %
func.func @main() {
  "no.such.kernel"() : () -> ()
  tfrt.return
}
