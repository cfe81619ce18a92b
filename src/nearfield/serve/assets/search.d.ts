// The types of the scripts of the search page, for the type checker alone: what the API answers, and what is shared.

type Box = [left: number, top: number, right: number, bottom: number]; // fractions of the image

interface ImageExample {
  kind: "image";
  file: Blob;
  url: string;
  box: Box | null;
  vector: number[] | null; // of the part in the box, when it is known
}
interface ItemExample {
  kind: "item";
  id: number;
}
type Example = ImageExample | ItemExample;

interface Hit {
  id: number;
  label: string | null;
  score: number;
  path: string;
  copies: number[];
  near: number[];
}
interface Answer {
  neighbours: Hit[];
  suggestion: { label: string; probability: number | null } | null;
  is_new: boolean | null;
  p_value: number | null;
  collapsed: boolean;
  vector: number[] | null;
  vectors: number[][] | null;
  milliseconds: { decode: number; embed: number; search: number; total: number };
}
interface IndexFacts {
  name: string;
  items: number;
  classes: Record<string, number>;
  unlabelled: number;
  dims: number;
  model: string;
  engine: string | null;
  threshold: number | null;
  false_accept: number | null;
  note: string | null;
}
interface ItemFacts {
  id: number;
  label: string | null;
  path: string;
  has_file: boolean;
}
interface HeatAnswer {
  score: number;
  drops: number[][];
  seen: Box;
  milliseconds: number;
}
interface AtlasAnswer {
  ids: number[];
  labels: number[];
  classes: string[];
  x: number[];
  y: number[];
}
interface DuplicatesAnswer {
  identical: number[][];
  near: { first: number; second: number; bits: number; score: number }[];
}
interface SearchState {
  examples: Example[];
  shown: number; // the example on the stage
  right: Set<number>;
  wrong: Set<number>;
  label: string; // of the filter; "" for all
  k: number;
  asked: number; // requests so far: an answer to an older one is dropped
  facts: IndexFacts | null;
}
interface Operation {
  summary?: string;
  description?: string;
  parameters?: { name: string; in: string; description?: string; required?: boolean; schema?: { default?: unknown } }[];
  requestBody?: { content: Record<string, { schema: { properties?: Record<string, { description?: string }> } }> };
  responses: Record<string, { description: string }>;
}
