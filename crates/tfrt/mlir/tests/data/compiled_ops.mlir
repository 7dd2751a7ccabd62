module @unit attributes {tfrt.compiled} {
  func.func @fill(%m: memref<?xf32>, %v: f32) {
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    %n = memref.dim %m, %c0 : memref<?xf32>
    %last = arith.subi %n, %c1 : index
    %old = memref.load %m[%last] : memref<?xf32>
    %sum = arith.addf %old, %v : f32
    %root = math.sqrt %sum : f32
    %more = arith.cmpi sgt, %n, %c1 : index
    %kept = arith.select %more, %root, %v : f32
    cf.cond_br %more, ^store(%kept : f32), ^done
  ^store(%x: f32):
    memref.store %x, %m[%last] : memref<?xf32>
    cf.br ^done
  ^done:
    func.call @other(%kept) : (f32) -> ()
    return
  }
  func.func private @other(f32)
}
func.func @host() {
  "corpus.launch"() {entry = @unit::@fill} : () -> ()
  tfrt.return
}
