// The types of the scripts of the report, for the type checker alone: what `report/page.py` writes into the page,
// and values that several scripts share.

// ------------------------------------------------------------------------------------------ data of the page

type Interval = [mean: number, half: number | null];
type Scores = Record<string, Interval>;

interface Packed {
  type: "uint8" | "int8" | "uint16" | "uint32" | "int32";
  bytes: string; // base64, little-endian
}
interface Metric {
  key: string;
  text: string;
  help: string;
}
interface Method {
  label: string;
  name: string;
  params: Record<string, string>;
  trial: number | null;
  budget: { complete: number; pruned: number; runs: number; seconds: number; train_seconds: number } | null;
  unequal: string[];
}
interface BoardRow {
  method: number;
  scores: Scores;
  bootstrap: Interval | null;
  best: boolean;
  like_best: boolean;
  below_baseline: boolean;
  verdict: { text: string; difference: Interval; p: number } | null;
  seeds: number[];
}
interface CriticalDifference {
  methods: number[];
  ranks: number[];
  difference: number;
  p: number;
  groups: number[][]; // places in `methods`
}
interface BoardPart {
  key: string;
  text: string;
  note: string;
  rows: BoardRow[];
  compared_seeds: number[];
  critical: CriticalDifference | null;
}
interface Baseline {
  name: string;
  scores: Record<string, number>;
}
interface PublishedTable {
  title: string;
  part: string;
  network: string;
  differs: string;
  metrics: string[];
  taus: Record<string, number | null>;
  rows: { method: number; scores: Scores }[];
}
interface CurveBands {
  steps: number[];
  bands: Record<string, [mid: number[], low: number[], high: number[]]>;
}
interface MethodCurves {
  method: number;
  val: CurveBands;
  oracle: CurveBands;
  chosen: number;
}
interface MethodPrefixes {
  method: number;
  dims: number[];
  bytes: number[]; // of a vector
  scores: Record<string, number[]>;
}
interface Trial {
  number: number;
  params: Record<string, string | number | boolean>;
  value: number | null;
  reached: number | null;
}
interface SearchParam {
  key: string;
  log: boolean;
  importance: number | null;
}
interface Search {
  method: number;
  trials: Trial[];
  params: SearchParam[];
  best: number | null;
  complete: number;
  chance: number | null;
}
type ScoreAndRank = [score: number, rank: number];
interface LedgerPlace {
  method: number;
  honest: ScoreAndRank;
  biased: ScoreAndRank;
}
interface LedgerEntry {
  name: string;
  words: string;
  baseline: string;
  tau: number | null;
  in_turns: boolean;
  sides: [string, string]; // what the two rankings are called
  places: LedgerPlace[];
  mean_gain: number | null;
  leaders: number[];
  missing: string[];
}
interface LossWeights {
  method: number;
  settings: Record<string, string>;
  paper: string;
  note: string;
  measured: string;
  similarity: number[];
  curves: Partial<Record<"negative" | "positive", number[][]>>;
  heat: Packed;
  top: number;
}
interface PageData {
  metrics: Metric[];
  methods: Method[];
  board: { metric: string; parts: BoardPart[]; floors: Baseline[] };
  papers: { ours: string; tables: PublishedTable[] } | null;
  curves: MethodCurves[];
  searches: Search[];
  ledger: LedgerEntry[];
  provenance: {
    facts: Record<string, string>;
    protocol: Record<string, string>;
    command: string;
    toml: string;
    missing: string[];
  };
  select_by: string;
  items?: {
    labels: Packed;
    classes: string[];
    class_category: number[];
    categories: string[];
    thumbs: Packed;
    files: string[];
  };
  sheets?: { side: number; columns: number; per_sheet: number; sheets: number } | null;
  prefixes?: MethodPrefixes[];
  atlas?: { items: Packed; maps: { method: number; xy: Packed }[] } | null;
  gallery?: {
    queries: Packed;
    total: number;
    neighbours: number;
    seed: number;
    part: string;
    methods: {
      method: number;
      scores: Packed;
      near: Packed;
      class_scores: Packed;
      class_right: Packed;
      confusions: Packed;
    }[];
  } | null;
  weights?: { batch: Packed; of: number; losses: LossWeights[] } | null;
}

// ------------------------------------------------------------------------------------------ shared by scripts

type Handler = (event: PointerEvent) => void;
type Props = Record<string, string | number | boolean | null | undefined | Record<string, string | number> | Handler>;
type Child = Node | string | null | undefined | false | Child[];
type Numbers = Uint8Array | Int8Array | Uint16Array | Uint32Array | Int32Array;
type Point = [x: number, y: number];
type Order = "ascending" | "descending";

interface Choice<T> {
  value: T;
  text: string;
  title?: string;
}
interface Column {
  key?: string;
  text: string;
  title?: string;
  class?: string;
  first?: Order; // the order of the first click
}
interface Sorting {
  key: string;
  order: Order;
}
interface ClassRow {
  label: number;
  name: string;
  size: number;
  a: number; // average precision of one method
  b: number; // of the other, NaN without one
  difference: number;
  right: number; // share of queries whose nearest image has their class
}
interface Series {
  name: string;
  look: string;
  x: number[];
  mid: number[];
  low?: number[];
  high?: number[];
  kind?: "faint" | "oracle"; // drawn without band and name
}
interface LineChart {
  series: Series[];
  marks?: { look: string; x: number; y: number }[];
  xLabel: string;
  yLabel: string;
  height: number;
  format: (value: number, exact?: boolean) => string;
  named: boolean;
  label: string;
  zero?: boolean;
  log?: boolean; // x on a logarithmic scale, with a tick at each value
}
