/** Runs ExecuTorch programs and shows what is in them, in browsers and other JavaScript engines. */

/** The types of elements, by PyTorch's names. */
export type DType =
  | "float32" | "float64" | "float16" | "bfloat16"
  | "int8" | "uint8" | "int16" | "uint16" | "int32" | "uint32" | "int64" | "uint64" | "bool"
  | "complex32" | "complex64" | "complex128" | (string & {});

/**
 * The arrays of elements. `bool` is a `Uint8Array`; `float16` and `bfloat16` are their bits in a `Uint16Array`; complex
 * numbers are pairs; a type that JavaScript lacks altogether is a `Uint8Array` of its bytes.
 */
export type Elements =
  | Float32Array | Float64Array | Int8Array | Uint8Array | Int16Array | Uint16Array
  | Int32Array | Uint32Array | BigInt64Array | BigUint64Array;

/** A tensor with memory of its own. */
export class Tensor {
  /** Without `data`, of zeros. */
  constructor(dtype: DType, sizes: readonly number[], data?: Elements);
  readonly dtype: DType;
  readonly sizes: number[];
  /** The elements in row-major order. */
  readonly data: Elements;
}

/** Numbers, in brackets as many as there are dimensions, or in fewer. */
export type Numbers = readonly (number | bigint | Numbers)[];

/**
 * An input. Elements without sizes have those that the method declares; numbers in a list are converted to its type.
 * `null` is no value, `undefined` what the exporter fixed.
 */
export type Input =
  | Tensor | Elements | Uint8ClampedArray
  | { data: Elements | Uint8ClampedArray | Numbers; sizes?: readonly number[]; dtype?: DType }
  | Numbers | number | bigint | boolean | string | null | undefined;

/**
 * The inputs of a method: a list of them, in order (those that the exporter fixed may be left out, all or none), or by
 * the names that the exporter kept, or a single one, which is no list.
 */
export type Inputs = readonly Input[] | Record<string, Input> | Exclude<Input, Numbers | null | undefined>;

/** An output. Integers that a number cannot hold are a `bigint`. */
export type Output = Tensor | number | bigint | boolean | string | null | Output[];

/** What a method declares about an input or output. */
export interface Value {
  /** `Tensor`, `Int`, `Double`, `Bool`, `String`, … */
  readonly kind: string;
  /** What is known of a tensor. Sizes of a dynamic one are the largest. */
  readonly tensor: { readonly name: string | null; readonly dtype: DType; readonly sizes: number[]; readonly dynamic: boolean } | null;
  /** The value that the exporter fixed, as text. */
  readonly fixed: string | null;
}

/** A method of a program. */
export interface Method {
  readonly name: string;
  readonly inputs: readonly Value[];
  readonly outputs: readonly Value[];
  /** The backends to which parts of it are delegated. */
  readonly backends: readonly string[];
  readonly instructions: number;
}

/** What a run has given, and how long it took. Times are in milliseconds, by `performance.now()`. */
export interface Measured {
  readonly method: string;
  /** The outputs of the first run. */
  readonly outputs: Output[];
  /** How long it took to load the method, which is done once. */
  readonly loadMs: number;
  /** The first run, inputs set. */
  readonly ms: number;
  /** The further runs. A clock may be too coarse for one of them; `mean` is of all of them. */
  readonly latency: { readonly runs: number; readonly min: number; readonly median: number; readonly p99: number; readonly mean: number } | null;
}

/** The bytes of a file. */
export type Bytes = ArrayBuffer | ArrayBufferView | Blob;

/** The bytes of a file, and what errors call it. */
export type Named = Bytes | { readonly name: string; readonly bytes: Bytes };

/** How a picture becomes an input, as `pteron run` prepares it. Without `resize` and `crop` it is stretched to the input. */
export interface PictureOptions {
  /** By default the main method. */
  method?: string;
  /** Which of its inputs: by default the first. */
  input?: number;
  /** What errors call it. */
  name?: string;
  /** `unit`: 0 to 1, which is the default; `signed`: -1 to 1; `imagenet`: mean 0 and deviation 1 over ImageNet. */
  preset?: "unit" | "signed" | "imagenet";
  /** The shorter side, or height and width. */
  resize?: number | readonly [number, number];
  /** Cuts out the middle: height and width. */
  crop?: readonly [number, number];
  /** The factor of bytes: 1/255 by default. */
  scale?: number;
  /** What is subtracted then: for all channels, or one for each. */
  mean?: readonly number[];
  /** What is divided by then. */
  std?: readonly number[];
  /** The input is [N, H, W, C] or [H, W, C]. */
  channelsLast?: boolean;
}

/** A file that is open: a program, or anything else that a report shows. */
export class Module {
  private constructor();
  /** What errors and reports call the file. */
  readonly name: string;
  /** Its size. */
  readonly bytes: number;
  /** How long it took to open it, in milliseconds. */
  readonly loadMs: number;
  /** The methods, in the order of the file; none if it is no program. */
  readonly methods: readonly Method[];
  /** The method that is meant where none is named: `forward`, or the only one. */
  readonly main: string | null;
  /** A method by name. */
  method(name?: string): Method;
  /** Runs a method. Outputs have memory of their own. */
  run(inputs?: Inputs): Output[];
  run(method: string, inputs?: Inputs): Output[];
  /** As `run`, with times; the method is run `repeat` further times. */
  measure(inputs?: Inputs, options?: { repeat?: number }): Measured;
  measure(method: string, inputs?: Inputs, options?: { repeat?: number }): Measured;
  /** Inputs at random that a method takes, the same each time. */
  random(method?: string): (Tensor | number | bigint | boolean | string | null)[];
  /** An input made of the bytes of a PNG or JPEG file. */
  picture(bytes: ArrayBuffer | ArrayBufferView, options?: PictureOptions): Tensor;
  /**
   * A page about the file: HTML that needs nothing else. With inputs, every node has its time. A page that shows it in a
   * frame gets messages of it: `{ pteron: "report", over: 1 | -1 }` as files are dragged over it, and
   * `{ pteron: "report", files: File[] }` when they are dropped on it.
   */
  report(options?: { method?: string; inputs?: Inputs; repeat?: number }): string;
  /** What is in the file, as `pteron inspect --json` has it. */
  inspect(): unknown;
  /** Frees the memory. Where there is `Symbol.dispose`, `using` does it. */
  dispose(): void;
}

/** An error that Pteron reports. */
export class PteronError extends Error {
  /** `format`, `input`, `missing`, `data`, `load`, `execute`, `limit`, `compile`, `memory`, `stopped` or `error`. */
  readonly kind: string;
  /** The file. */
  readonly file?: string;
  /** The field of the file, or the instruction. */
  readonly path?: string;
  /** The byte of the file. */
  readonly offset?: number;
  /** What to do about it. */
  readonly remedy?: string;
  readonly method?: string;
  /** Operators that are missing. */
  readonly operators?: string[];
  /** Backends that are missing. */
  readonly backends?: string[];
}

/**
 * Starts Pteron. `load` does it where nobody has; call it to say where `pteron.wasm` is, if that is not beside the
 * script, or to start it anew after an error of the kind `stopped`.
 */
export function setup(source?: string | URL | Response | ArrayBuffer | ArrayBufferView | WebAssembly.Module): Promise<void>;

/**
 * Opens a file: a program (`.pte`, `.bpte`), a torch.export archive (`.pt2`), which is compiled, or any other file that
 * a report shows (`.bef`, `.ptd`, `.gguf`, ETDumps). `data` are the `.ptd` files with a program's weights.
 */
export function load(file: Named, options?: { name?: string; data?: Named | readonly Named[] }): Promise<Module>;

/** The `k` largest elements of each row of a tensor, with their labels if there are any. */
export function top(tensor: Tensor, k: number, labels?: readonly string[]): { index: number; value: number; label?: string }[][];

/** The version of Pteron, and what it holds. */
export function about(): Promise<{ version: string; simd: boolean; modules: number; buffers: number }>;
