// An expected error that does not occur is an error, and so is an unexpected one.
// FAIL: translate % --verify-diagnostics
func.func @main() {
  // expected-error @+1 {{this does not come}}
  "k"() {a} : () -> ()
  tfrt.return
}
