/** Runs ExecuTorch programs and shows their contents, in browsers and other JavaScript engines. */

/** The element types, by PyTorch's names. */
export type DType =
  | "float32" | "float64" | "float16" | "bfloat16"
  | "int8" | "uint8" | "int16" | "uint16" | "int32" | "uint32" | "int64" | "uint64" | "bool"
  | "complex32" | "complex64" | "complex128" | (string & {});

/**
 * The arrays of elements. `bool` is a `Uint8Array`; `float16` and `bfloat16` are their bits in a `Uint16Array`; complex
 * numbers are pairs; other types that JavaScript lacks are a `Uint8Array` of their bytes.
 */
export type Elements =
  | Float32Array | Float64Array | Int8Array | Uint8Array | Int16Array | Uint16Array
  | Int32Array | Uint32Array | BigInt64Array | BigUint64Array;

/** A tensor that owns its memory. */
export class Tensor {
  /** Without `data`, the tensor is filled with zeros. */
  constructor(dtype: DType, sizes: readonly number[], data?: Elements);
  readonly dtype: DType;
  readonly sizes: number[];
  /** The elements in row-major order. */
  readonly data: Elements;
}

/** Numbers in nested lists, of as many levels as there are dimensions, or fewer. */
export type Numbers = readonly (number | bigint | Numbers)[];

/**
 * An input. Elements without sizes have the sizes that the method declares; numbers in a list are converted to its type.
 * `null` is no value, `undefined` the value that the exporter fixed.
 */
export type Input =
  | Tensor | Elements | Uint8ClampedArray
  | { data: Elements | Uint8ClampedArray | Numbers; sizes?: readonly number[]; dtype?: DType }
  | Numbers | number | bigint | boolean | string | null | undefined;

/**
 * The inputs of a method: a list in order (those that the exporter fixed may be omitted, all or none), an object by
 * the names of the inputs, or a single input that is not a list.
 */
export type Inputs = readonly Input[] | Record<string, Input> | Exclude<Input, Numbers | null | undefined>;

/** An output. Integers that a number cannot represent exactly are a `bigint`. */
export type Output = Tensor | number | bigint | boolean | string | null | Output[];

/** The declaration of an input or output of a method. */
export interface Value {
  /** `Tensor`, `Int`, `Double`, `Bool`, `String`, … */
  readonly kind: string;
  /** Its name in the exported signature, such as `input_ids` or `cache.0`, if the program has it. */
  readonly name: string | null;
  /** The type of a tensor. The sizes of a dynamic tensor are upper bounds. */
  readonly tensor: { readonly dtype: DType; readonly sizes: number[]; readonly dynamic: boolean } | null;
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

/** The outputs of a run, and its times in milliseconds, by `performance.now()`. */
export interface Measured {
  readonly method: string;
  /** The outputs of the first run. */
  readonly outputs: Output[];
  /** The time to load the method, which happens once. */
  readonly loadMs: number;
  /** The time of the first run, including setting the inputs. */
  readonly ms: number;
  /** The times of the further runs. The clock may be too coarse for a single run; `mean` is measured over all of them. */
  readonly latency: { readonly runs: number; readonly min: number; readonly median: number; readonly p99: number; readonly mean: number } | null;
}

/** The bytes of a file. */
export type Bytes = ArrayBuffer | ArrayBufferView | Blob;

/** The bytes of a file, and its name in errors. */
export type Named = Bytes | { readonly name: string; readonly bytes: Bytes };

/**
 * Preprocessing of an image, as in `pteron run`. Without any of its options, it is what the program stores (`Module.task`). Without
 * `resize` and `crop`, the image is stretched to the sizes of the input.
 */
export interface PictureOptions {
  /** By default the main method. */
  method?: string;
  /** The index of the input: by default the first. */
  input?: number;
  /** The name of the image in errors. */
  name?: string;
  /** `unit`: 0 to 1, the default; `signed`: -1 to 1; `imagenet`: mean 0 and standard deviation 1 over ImageNet. */
  preset?: "unit" | "signed" | "imagenet";
  /** The shorter side, or height and width. */
  resize?: number | readonly [number, number];
  /** The height and width of a centre crop. */
  crop?: readonly [number, number];
  /** The factor of the pixel values 0 to 255: 1/255 by default. */
  scale?: number;
  /** Subtracted after scaling: one value for all channels, or one for each. */
  mean?: readonly number[];
  /** Divided by after subtracting the mean: one value for all channels, or one for each. */
  std?: readonly number[];
  /** The input is [N, H, W, C] or [H, W, C]. */
  channelsLast?: boolean;
}

/** Task metadata (docs/task.md). */
export interface TaskMetadata {
  readonly version: number;
  readonly task?: string;
  readonly preprocessing?: { readonly [field: string]: unknown };
  /** The names of the classes, by their positions along the last dimension of the first output. */
  readonly labels?: readonly string[];
  readonly tokenizer?: { readonly sha256: string; readonly [field: string]: unknown };
  /** An SPDX expression. */
  readonly license?: string;
  readonly provenance?: unknown;
  readonly [field: string]: unknown;
}

/** A function of a BEF program. */
export interface BefFunction {
  readonly name: string;
  /** The types of the arguments and of the results, as in MLIR text. */
  readonly arguments: readonly string[];
  readonly results: readonly string[];
}

/** What a run of functions of a BEF program printed. */
export interface BefRun {
  /** 0, or 1 if an unexpected error occurred or an expected one did not. */
  readonly exitCode: number;
  /** The names of the functions, the values that they returned, and what their kernels printed. */
  readonly output: string;
  /** The errors with their locations. */
  readonly errors: string;
  /** The time of the run, in milliseconds. */
  readonly ms: number;
}

/** An open file: a program, or any other file that a report can show. */
export class Module {
  private constructor();
  /** The name of the file in errors and reports. */
  readonly name: string;
  /** The size of the file. */
  readonly bytes: number;
  /** The time to open the file, in milliseconds. */
  readonly loadMs: number;
  /** The methods, in the order of the file; none if it is no program. */
  readonly methods: readonly Method[];
  /** The functions of a BEF program; none in any other file. */
  readonly functions: readonly BefFunction[];
  /** The default method: the only one, or `forward`. */
  readonly main: string | null;
  /** The task metadata that the program stores: labels, preprocessing, licence and more. */
  readonly task: TaskMetadata | null;
  /** A method by name. */
  method(name?: string): Method;
  /** Runs a method. The outputs own their memory. */
  run(inputs?: Inputs): Output[];
  run(method: string, inputs?: Inputs): Output[];
  /** As `run`, but also measures times; the method is run `repeat` more times. */
  measure(inputs?: Inputs, options?: { repeat?: number }): Measured;
  measure(method: string, inputs?: Inputs, options?: { repeat?: number }): Measured;
  /** Runs functions of a BEF program in this order, such as `f(1, 2.5)`; by default all that take no arguments. */
  runFunctions(functions?: readonly string[]): BefRun;
  /** Pseudo-random inputs for a method, the same on each call. */
  random(method?: string): (Tensor | number | bigint | boolean | string | null)[];
  /** Decodes and preprocesses a PNG or JPEG file to an input. */
  picture(bytes: ArrayBuffer | ArrayBufferView, options?: PictureOptions): Tensor;
  /**
   * A report on the file: a self-contained HTML page. With inputs, the method is profiled, and every node has its time. If it is
   * shown in a frame, it posts messages to the parent: `{ pteron: "report", over: 1 | -1 }` as files are dragged over it, and
   * `{ pteron: "report", files: File[] }` when they are dropped on it.
   */
  report(options?: { method?: string; inputs?: Inputs; repeat?: number }): string;
  /** The contents of the file, as in `pteron inspect --json`. */
  inspect(): unknown;
  /** Frees the memory. `using` calls it where `Symbol.dispose` is supported. */
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
  /** The byte offset in the file. */
  readonly offset?: number;
  /** What to do about it. */
  readonly remedy?: string;
  readonly method?: string;
  /** Operators that are missing. */
  readonly operators?: string[];
  /** Backends that are missing. */
  readonly backends?: string[];
}

/** How Pteron is started. */
export interface SetupOptions {
  /**
   * The number of threads that a run uses, 1 to 64: by default one for each processor, at most 8. There is one, whatever is asked for,
   * in the script of a page (a worker of the page may have more), where memory cannot be shared because the page is not
   * cross-origin isolated, and if `source` is the module for one thread. Results are the same, bit for bit.
   */
  threads?: number;
}

/**
 * Starts Pteron. `load` calls it if needed. Call it to set the number of threads, to pass the location of the module, if that is not
 * beside the script (`pteron.threads.wasm` for several threads, `pteron.wasm` for one), or to restart Pteron after an error of
 * the kind `stopped`. It fails if a number of threads is given and a worker does not start.
 */
export function setup(source?: string | URL | Response | ArrayBuffer | ArrayBufferView | WebAssembly.Module | null, options?: SetupOptions): Promise<void>;

/**
 * Opens a file: a program (`.pte`, `.bpte`), a torch.export archive (`.pt2`), which is compiled, a BEF program (`.bef`), MLIR
 * text (`.mlir`), which is translated to one, or any other file that
 * a report can show (`.bef`, `.ptd`, `.gguf`, ETDumps). `data` are the `.ptd` files with a program's external weights.
 */
export function load(file: Named, options?: { name?: string; data?: Named | readonly Named[] }): Promise<Module>;

/** The `k` largest elements of each row of a tensor, with their labels if given. */
export function top(tensor: Tensor, k: number, labels?: readonly string[]): { index: number; value: number; label?: string }[][];

/** The version of Pteron, whether it uses SIMD, and the numbers of threads, open modules and buffers. */
export function about(): Promise<{ version: string; simd: boolean; threads: number; modules: number; buffers: number }>;
