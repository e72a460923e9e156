// A client of Shoal's protocol (docs/protocol.md) for browsers and Node, in one file without dependencies.
//
//   import { Client } from "./shoal.js";
//   const policy = await Client.connect("ws://127.0.0.1:8700");
//   const { action } = await policy.act(Float32Array.of(0, 0, 0, 0));
//
// A server that trains is told what came of each action: await client.step(observation, { reward, terminated, … }).
// A connection that is lost is opened again with the session it had, and what was not answered is sent again.

const PROTOCOL = 1;
const COME_BACK = new Set([1001, 1005, 1006, 1011, 1012, 1013]);  // codes after which a server can be asked again
const LATER = new Set([1012, 1013]);  // codes with which a server asks to come back, though it has welcomed nobody yet
const KINDS = {
  "|b1": Uint8Array, "|i1": Int8Array, "|u1": Uint8Array, "<i2": Int16Array, "<u2": Uint16Array,
  "<i4": Int32Array, "<u4": Uint32Array, "<i8": BigInt64Array, "<u8": BigUint64Array,
  "<f4": Float32Array, "<f8": Float64Array,
};

/** An error that the server has told in a sentence; `code` says of which kind it is. */
export class ShoalError extends Error {
  constructor(code, message) {
    super(message);
    this.name = "ShoalError";
    this.code = code;
  }
}

/** An array with a shape: `array([[1, 2], [3, 4]])`, or `array(new Uint8Array(84 * 84), [84, 84])`. Truths are bytes
 *  that say so: `{ data: Uint8Array.of(1, 0), shape: [2], bool: true }`. */
export function array(data, shape) {
  if (ArrayBuffer.isView(data)) return { data, shape: shape ?? [data.length] };
  const found = [];
  for (let part = data; Array.isArray(part); part = part[0]) found.push(part.length);
  return { data: Float32Array.from(data.flat(Infinity)), shape: shape ?? found };
}

export class Client {
  /** `options`: token, role ("player", or, of a server that trains, "environment"), environments, spaces, session,
   *  retrySeconds (for how long a lost connection is tried again; 60), WebSocket (where none is built in). */
  static async connect(url, options = {}) {
    const client = new Client(url, options);
    client.#ready = client.#handshake().catch((problem) => {
      if (!LATER.has(problem.closeCode)) throw problem;  // nobody is there, or nobody wants it
      return client.#again();
    });
    await client.#ready;
    return client;
  }

  #url; #options; #socket = null; #seq = 0; #stored = 0; #waiting = new Map(); #closed = false; #ready = null;

  constructor(url, options) {
    this.#url = url;
    this.#options = options;
    this.session = options.session ?? "";
    this.spaces = null;
    this.metadata = {};
  }

  /** The action for an observation: {action, version}. `more`: reset (an episode begins), reward, greedy. */
  act(observation, more = {}) {
    return this.#ask({ type: "act", observation: sendable(observation), ...sendableAll(more) });
  }

  /** As `act`, for a server that trains: with what the last action gave, {reward, terminated, truncated}, or with
   *  {reset: true} where an episode begins. */
  step(observation, more = {}) {
    return this.#ask({ type: "step", observation: sendable(observation), ...sendableAll(more) });
  }

  close() {
    this.#closed = true;
    if (this.#socket?.readyState === 1) {
      this.#socket.send(pack({ type: "bye" }));
      this.#socket.close(1000);
    }
    this.#fail(new ShoalError("closed", "the client was closed"));
  }

  async #ask(message) {
    if (this.#closed) throw new ShoalError("closed", "the client was closed");
    await this.#ready;
    const seq = ++this.#seq;
    const bytes = pack({ ...message, seq });
    return await new Promise((resolve, reject) => {
      this.#waiting.set(seq, { bytes, resolve, reject });
      this.#socket.send(bytes);
    });
  }

  #handshake() {
    const Socket = this.#options.WebSocket ?? globalThis.WebSocket;
    if (!Socket) throw new ShoalError("client", "this JavaScript has no WebSocket: Node needs version 22, or the option WebSocket");
    const { promise, resolve, reject } = resolvers();
    const socket = new Socket(this.#url);
    socket.binaryType = "arraybuffer";
    this.#socket = socket;
    let welcomed = false;
    socket.onmessage = (event) => {
      let message;
      try {
        message = unpack(event.data);
      } catch (problem) {
        socket.close(1002);
        return reject(problem);
      }
      if (message.type === "greeting") {
        this.metadata = message;
        const { token, environments, spaces, name } = this.#options;
        const role = this.#options.role ?? (message.server === "train" ? "environment" : "player");
        const hello = { type: "hello", protocol: PROTOCOL, role, text_keys: true, token, environments, name };
        if (message.server === "train") hello.spaces = spaces;  // who serves a finished policy says what it takes
        if (this.session) Object.assign(hello, { session: this.session, seq: this.#answered(), stored: this.#stored });
        socket.send(pack(hello));
      } else if (message.type === "welcome") {
        welcomed = true;
        this.session = message.session;
        this.spaces = message.spaces;
        const trains = this.metadata.server === "train";  // it goes on in the middle, with the step that is asked again
        if (!message.resumed && !trains && message.recurrent !== false) {  // what had an episode's memory has lost it
          this.#fail(new ShoalError("session", "the server has forgotten the session: its episode is over"));
          this.#seq = message.seq ?? 0;
        }
        for (const { bytes } of this.#waiting.values()) socket.send(bytes);
        resolve(this);
      } else if (message.type === "action") {
        const waiting = this.#waiting.get(message.seq);
        this.#waiting.delete(message.seq);
        this.#stored = message.stored ?? this.#stored;
        waiting?.resolve(message);
      } else if (message.type === "error") {
        const problem = new ShoalError(message.code, message.message);
        const waiting = this.#waiting.get(message.seq);
        if (waiting) {
          this.#waiting.delete(message.seq);
          waiting.reject(problem);
        } else if (!welcomed) {
          this.#closed = true;
          reject(problem);
        } else {
          this.#fail(problem);
        }
      } else if (message.type === "end") {
        this.#closed = true;
        this.#fail(new ShoalError("end", message.message));
      }
    };
    socket.onclose = (event) => {
      if (socket !== this.#socket || this.#closed) return reject(new ShoalError("closed", event.reason || "closed"));
      if (!welcomed || !COME_BACK.has(event.code)) {
        const problem = new ShoalError("closed", `the server closed the connection (${event.code} ${event.reason})`);
        problem.closeCode = event.code;
        this.#fail(problem);
        return reject(problem);
      }
      this.#ready = this.#again();
      this.#ready.catch((problem) => this.#fail(problem));
    };
    socket.onerror = () => {};  // what happened is told by onclose
    return promise;
  }

  async #again() {
    const end = Date.now() + 1000 * (this.#options.retrySeconds ?? 60);
    for (let wait = 100; ; wait = Math.min(2 * wait, 5000)) {
      await new Promise((done) => setTimeout(done, wait * (0.5 + Math.random() / 2)));
      try {
        return await this.#handshake();
      } catch (problem) {
        if (this.#closed || Date.now() > end) throw problem;
      }
    }
  }

  #answered() {
    return this.#waiting.size ? Math.min(...this.#waiting.keys()) - 1 : this.#seq;
  }

  #fail(problem) {
    const all = [...this.#waiting.values()];
    this.#waiting.clear();
    for (const { reject } of all) reject(problem);
  }
}

function resolvers() {
  let resolve, reject;
  const promise = new Promise((yes, no) => ([resolve, reject] = [yes, no]));
  return { promise, resolve, reject };
}

function sendable(value) {
  if (ArrayBuffer.isView(value)) return array(value);
  if (Array.isArray(value)) return array(value);
  if (value && typeof value === "object" && !("shape" in value && "data" in value)) return sendableAll(value);
  return value;
}

function sendableAll(parts) {
  return Object.fromEntries(Object.entries(parts).map(([name, value]) => [name, sendable(value)]));
}

// ---- msgpack, as much of it as the protocol has -------------------------------------------------------------------

const text = { encode: new TextEncoder(), decode: new TextDecoder("utf-8", { fatal: true }) };

export function pack(value) {
  const parts = [];
  write(value, parts);
  const bytes = new Uint8Array(parts.reduce((size, part) => size + part.length, 0));
  let at = 0;
  for (const part of parts) {
    bytes.set(part, at);
    at += part.length;
  }
  return bytes;
}

function write(value, parts) {
  if (value === null || value === undefined) parts.push(Uint8Array.of(0xc0));
  else if (typeof value === "boolean") parts.push(Uint8Array.of(value ? 0xc3 : 0xc2));
  else if (typeof value === "number") writeNumber(value, parts);
  else if (typeof value === "bigint") parts.push(headed(0xd3, (view) => view.setBigInt64(1, value), 9));
  else if (typeof value === "string") {
    const bytes = text.encode.encode(value);
    parts.push(sized(bytes.length, 0xa0, 31, 0xd9, 0xda, 0xdb), bytes);
  } else if (ArrayBuffer.isView(value)) writeArray(array(value), parts);
  else if (ArrayBuffer.isView(value.data) && Array.isArray(value.shape)) writeArray(value, parts);
  else if (Array.isArray(value)) {
    parts.push(sized(value.length, 0x90, 15, null, 0xdc, 0xdd));
    for (const part of value) write(part, parts);
  } else {
    const entries = Object.entries(value).filter(([, part]) => part !== undefined);
    parts.push(sized(entries.length, 0x80, 15, null, 0xde, 0xdf));
    for (const [name, part] of entries) {
      write(name, parts);
      write(part, parts);
    }
  }
}

function writeNumber(value, parts) {
  if (Number.isSafeInteger(value)) {
    if (value >= 0 && value < 128) parts.push(Uint8Array.of(value));
    else if (value < 0 && value >= -32) parts.push(Uint8Array.of(256 + value));
    else parts.push(headed(0xd3, (view) => view.setBigInt64(1, BigInt(value)), 9));
  } else parts.push(headed(0xcb, (view) => view.setFloat64(1, value), 9));
}

function writeArray({ data, shape, bool }, parts) {
  const name = bool ? "|b1" : data instanceof Uint8ClampedArray ? "|u1" : Object.entries(KINDS).find(([key, kind]) => key !== "|b1" && data instanceof kind)?.[0];
  if (!name) throw new TypeError(`${data.constructor.name} cannot be sent`);
  const bytes = new Uint8Array(data.buffer, data.byteOffset, data.byteLength);  // every machine with JavaScript is little-endian
  parts.push(sized(4, 0x80, 15, null, 0xde, 0xdf));
  write("__ndarray__", parts);
  write(true, parts);
  write("data", parts);
  parts.push(sized(bytes.length, null, -1, 0xc4, 0xc5, 0xc6), bytes);
  write("dtype", parts);
  write(name, parts);
  write("shape", parts);
  parts.push(sized(shape.length, 0x90, 15, null, 0xdc, 0xdd));
  for (const size of shape) write(size, parts);
}

function headed(first, fill, size) {
  const bytes = new Uint8Array(size);
  bytes[0] = first;
  fill(new DataView(bytes.buffer));
  return bytes;
}

function sized(size, fix, most, eight, sixteen, thirtyTwo) {
  if (size <= most) return Uint8Array.of(fix | size);
  if (eight !== null && size < 256) return Uint8Array.of(eight, size);
  if (size < 65536) return headed(sixteen, (view) => view.setUint16(1, size), 3);
  return headed(thirtyTwo, (view) => view.setUint32(1, size), 5);
}

export function unpack(buffer) {
  const bytes = buffer instanceof Uint8Array ? buffer : new Uint8Array(buffer);
  const reader = { bytes, view: new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength), at: 0 };
  const value = read(reader, 0);
  if (reader.at !== bytes.length) throw new ShoalError("protocol", "bytes are left behind a message");
  return value;
}

function read(reader, depth) {
  if (depth > 64) throw new ShoalError("protocol", "a message is nested too deeply");
  const { view } = reader;
  const first = view.getUint8(reader.at++);
  const take = (size, get) => get(view, (reader.at += size) - size);
  if (first < 0x80) return first;
  if (first < 0x90) return readMap(reader, first & 15, depth);
  if (first < 0xa0) return readList(reader, first & 15, depth);
  if (first < 0xc0) return readText(reader, first & 31);
  if (first >= 0xe0) return first - 256;
  switch (first) {
    case 0xc0: return null;
    case 0xc2: return false;
    case 0xc3: return true;
    case 0xc4: return readBytes(reader, take(1, (v, at) => v.getUint8(at)));
    case 0xc5: return readBytes(reader, take(2, (v, at) => v.getUint16(at)));
    case 0xc6: return readBytes(reader, take(4, (v, at) => v.getUint32(at)));
    case 0xca: return take(4, (v, at) => v.getFloat32(at));
    case 0xcb: return take(8, (v, at) => v.getFloat64(at));
    case 0xcc: return take(1, (v, at) => v.getUint8(at));
    case 0xcd: return take(2, (v, at) => v.getUint16(at));
    case 0xce: return take(4, (v, at) => v.getUint32(at));
    case 0xcf: return plain(take(8, (v, at) => v.getBigUint64(at)));
    case 0xd0: return take(1, (v, at) => v.getInt8(at));
    case 0xd1: return take(2, (v, at) => v.getInt16(at));
    case 0xd2: return take(4, (v, at) => v.getInt32(at));
    case 0xd3: return plain(take(8, (v, at) => v.getBigInt64(at)));
    case 0xd9: return readText(reader, take(1, (v, at) => v.getUint8(at)));
    case 0xda: return readText(reader, take(2, (v, at) => v.getUint16(at)));
    case 0xdb: return readText(reader, take(4, (v, at) => v.getUint32(at)));
    case 0xdc: return readList(reader, take(2, (v, at) => v.getUint16(at)), depth);
    case 0xdd: return readList(reader, take(4, (v, at) => v.getUint32(at)), depth);
    case 0xde: return readMap(reader, take(2, (v, at) => v.getUint16(at)), depth);
    case 0xdf: return readMap(reader, take(4, (v, at) => v.getUint32(at)), depth);
  }
  throw new ShoalError("protocol", `a message has the byte ${first}`);
}

function plain(big) {
  return big >= BigInt(Number.MIN_SAFE_INTEGER) && big <= BigInt(Number.MAX_SAFE_INTEGER) ? Number(big) : big;
}

function readBytes(reader, size) {
  if (reader.at + size > reader.bytes.length) throw new ShoalError("protocol", "a message ends too early");
  return reader.bytes.slice(reader.at, (reader.at += size));
}

function readText(reader, size) {
  return text.decode.decode(readBytes(reader, size));
}

function readList(reader, size, depth) {
  const list = [];
  for (let i = 0; i < size; i++) list.push(read(reader, depth + 1));
  return list;
}

function readMap(reader, size, depth) {
  const map = {};
  for (let i = 0; i < size; i++) {
    const name = read(reader, depth + 1);
    map[name instanceof Uint8Array ? text.decode.decode(name) : name] = read(reader, depth + 1);
  }
  if (map.__ndarray__ !== true) return map;
  const Kind = KINDS[map.dtype];
  if (!Kind || !(map.data instanceof Uint8Array)) throw new ShoalError("protocol", `an array of ${map.dtype}`);
  return { data: new Kind(map.data.buffer, map.data.byteOffset, map.data.byteLength / Kind.BYTES_PER_ELEMENT), shape: map.shape };
}
