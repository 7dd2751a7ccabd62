// Each part is a separate program with its own symbols; line numbers are those of the whole file.
// FAIL: translate % --verify-diagnostics --split-input-file
func.func @main() {
  // expected-error @+1 {{BEF files cannot encode}}
  "k"() {a} : () -> ()
  tfrt.return
}

// -----

func.func @main() {
  "k"() {a} : () -> ()
  tfrt.return
}

// -----

// expected-error @+1 {{external functions are not allowed}}
func.func private @main() -> i32
