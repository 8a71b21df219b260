// SHA-256 (FIPS 180-4) that can be gone on with: crypto.subtle has none, and none at all where a page came without TLS.
"use strict";
window.Sha256 = (() => {
  const primes = [];
  for (let n = 2; primes.length < 64; n++) if (primes.every((each) => n % each)) primes.push(n);
  const fraction = (x) => ((x - Math.floor(x)) * 2 ** 32) | 0;
  const K = Int32Array.from(primes, (each) => fraction(Math.cbrt(each)));
  const H = Int32Array.from(primes.slice(0, 8), (each) => fraction(Math.sqrt(each)));
  const W = new Int32Array(64);

  const mix = (state, data, at) => {
    for (let i = 0; i < 16; i++, at += 4)
      W[i] = data[at] << 24 | data[at + 1] << 16 | data[at + 2] << 8 | data[at + 3];
    for (let i = 16; i < 64; i++) {
      const x = W[i - 15], y = W[i - 2];
      W[i] = W[i - 16] + W[i - 7] + ((x >>> 7 | x << 25) ^ (x >>> 18 | x << 14) ^ x >>> 3) +
        ((y >>> 17 | y << 15) ^ (y >>> 19 | y << 13) ^ y >>> 10) | 0;
    }
    let a = state[0], b = state[1], c = state[2], d = state[3], e = state[4], f = state[5], g = state[6], h = state[7];
    for (let i = 0; i < 64; i++) {
      const one = h + ((e >>> 6 | e << 26) ^ (e >>> 11 | e << 21) ^ (e >>> 25 | e << 7)) + (e & f ^ ~e & g) + K[i] + W[i] | 0;
      const two = ((a >>> 2 | a << 30) ^ (a >>> 13 | a << 19) ^ (a >>> 22 | a << 10)) + (a & b ^ a & c ^ b & c) | 0;
      h = g; g = f; f = e; e = d + one | 0; d = c; c = b; b = a; a = one + two | 0;
    }
    state[0] += a; state[1] += b; state[2] += c; state[3] += d; state[4] += e; state[5] += f; state[6] += g; state[7] += h;
  };

  return class Sha256 {
    constructor() { this.state = H.slice(); this.rest = new Uint8Array(64); this.held = 0; this.bytes = 0; }
    copy() {
      const made = new Sha256();
      made.state = this.state.slice();
      made.rest = this.rest.slice();
      made.held = this.held;
      made.bytes = this.bytes;
      return made;
    }
    update(data) {
      let at = 0;
      this.bytes += data.length;
      if (this.held) {
        at = Math.min(64 - this.held, data.length);
        this.rest.set(data.subarray(0, at), this.held);
        this.held += at;
        if (this.held < 64) return this;
        mix(this.state, this.rest, 0);
        this.held = 0;
      }
      for (; at + 64 <= data.length; at += 64) mix(this.state, data, at);
      this.rest.set(data.subarray(at));
      this.held = data.length - at;
      return this;
    }
    digest() {
      const last = this.copy(), end = new DataView(new ArrayBuffer(8)), bytes = this.bytes;
      end.setUint32(0, Math.floor(bytes / 2 ** 29));
      end.setUint32(4, bytes * 8 % 2 ** 32);
      last.update(Uint8Array.of(128)).update(new Uint8Array((119 - bytes % 64) % 64)).update(new Uint8Array(end.buffer));
      const made = new DataView(new ArrayBuffer(32));
      last.state.forEach((word, number) => made.setInt32(4 * number, word));
      return new Uint8Array(made.buffer);
    }
    hex() { return [...this.digest()].map((each) => each.toString(16).padStart(2, "0")).join(""); }
    base64() { return btoa(String.fromCharCode(...this.digest())); }
  };
})();
