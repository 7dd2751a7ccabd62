// Options that apply to methods only are refused for a BEF program.
// USAGE: profile % 2x2xf32=1 --etdump %tmp/a.etdp --no-prepare --threads 2
func.func @main() {
  tfrt.return
}
