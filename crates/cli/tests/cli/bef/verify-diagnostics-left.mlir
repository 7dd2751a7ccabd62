// What is announced and does not come is an error, and so is what comes unannounced.
// FAIL: translate % --verify-diagnostics
func.func @main() {
  // expected-error @+1 {{this does not come}}
  "k"() {a} : () -> ()
  tfrt.return
}
