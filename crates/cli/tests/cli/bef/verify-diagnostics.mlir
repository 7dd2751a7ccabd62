// RUN: translate % --verify-diagnostics
func.func @main() {
  // expected-error @+1 {{BEF files cannot encode}}
  "k"() {a} : () -> ()
  tfrt.return
}
