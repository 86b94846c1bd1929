// ChatTTS's GPT for a CPU: all layers of a step in one call, int8 weights, float32 everything else.
//
// A step is bound by reading 189 MB of weights, so they are read once for all rows, by all threads,
// and nothing else is worth a second thought. Weights are symmetric int8 with a scale per output;
// inputs are symmetric int8 with a scale per row, so a row's result is the same whatever runs
// beside it: integer sums are exact, and everything else is done row by row.
//
// Built for the machine it runs on (-march=native); the compiler finds the dot-product instructions.
// Where there is one, x86 multiplies unsigned by signed bytes: inputs are stored with 128 added, and
// 128 times the sum of an output's weights is taken off again.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <new>
#include <vector>

namespace {

#if defined(__x86_64__)
using Byte = uint8_t;
constexpr int32_t OFFSET = 128;
#else
using Byte = int8_t;
constexpr int32_t OFFSET = 0;
#endif

constexpr int BLOCK = 4;     // rows that share one pass over the weights in registers
constexpr int CHUNK = 32;    // outputs that a thread takes at a time
constexpr int LANES = 16;    // dimensions of a value that are summed side by side
constexpr float EPSILON = 1e-6f;

}  // namespace

extern "C" {

// One linear layer: weights [out, in], and per output its scale and the sum of its weights.
struct Linear {
    const int8_t* weight;
    const float* scale;
    const int32_t* sum;
};

struct Layer {
    const float* attention_norm;
    Linear qkv;
    Linear out;
    const float* mlp_norm;
    Linear gate_up;
    Linear down;
};

struct Shape {
    int32_t layers, hidden, heads, inner, context, slots;
};

}

namespace {

// Rows of quantised inputs, each with its scale.
struct Quantised {
    std::vector<Byte> values;
    std::vector<float> scales;
};

void quantise_row(const float* x, Byte* out, float* scale, int n) {
    float top = 1e-12f;
#pragma omp simd reduction(max : top)
    for (int i = 0; i < n; i++) top = std::max(top, std::fabs(x[i]));
    const float factor = 127.0f / top;
#pragma omp simd
    for (int i = 0; i < n; i++) {
        // adding 1.5 * 2^23 rounds to the nearest whole number, ties to even
        const float rounded = (x[i] * factor + 12582912.0f) - 12582912.0f;
        out[i] = static_cast<Byte>(static_cast<int32_t>(rounded) + OFFSET);
    }
    *scale = top / 127.0f;
}

void norm_row(const float* x, const float* weight, float* out, int n) {
    float squares = 0.0f;
#pragma omp simd reduction(+ : squares)
    for (int i = 0; i < n; i++) squares += x[i] * x[i];
    const float factor = 1.0f / std::sqrt(squares / n + EPSILON);
#pragma omp simd
    for (int i = 0; i < n; i++) out[i] = x[i] * factor * weight[i];
}

// e^x to float32's accuracy; unlike libm's, it is vectorised. After Cephes.
inline float exponential(float x) {
    x = std::min(std::max(x, -87.0f), 88.0f);
    const float k = (x * 1.44269504f + 12582912.0f) - 12582912.0f;
    const float r = (x - k * 0.693359375f) + k * 2.12194440e-4f;
    float e = 1.9875691500e-4f;
    e = e * r + 1.3981999507e-3f;
    e = e * r + 8.3334519073e-3f;
    e = e * r + 4.1665795894e-2f;
    e = e * r + 1.6666665459e-1f;
    e = e * r + 5.0000001201e-1f;
    e = e * r * r + r + 1.0f;
    const int32_t bits = (static_cast<int32_t>(k) + 127) << 23;
    float power;
    std::memcpy(&power, &bits, sizeof power);
    return e * power;
}

// Products of R rows of inputs with O neighbouring rows of weights, handed to `store`.
template <int R, int O, typename Store>
inline void tile(const Quantised& x, const Linear& linear, int n, int output, int row, Store store) {
    const Byte* from = x.values.data() + static_cast<size_t>(row) * n;
    const int8_t* weight = linear.weight + static_cast<size_t>(output) * n;
    int32_t sums[R][O] = {};
    for (int i = 0; i < n; i++)
#pragma GCC unroll 4
        for (int r = 0; r < R; r++)
#pragma GCC unroll 2
            for (int o = 0; o < O; o++)
                sums[r][o] += static_cast<int32_t>(from[static_cast<size_t>(r) * n + i]) *
                              weight[static_cast<size_t>(o) * n + i];
    for (int o = 0; o < O; o++) {
        const int32_t offset = OFFSET * linear.sum[output + o];
        for (int r = 0; r < R; r++)
            store(output + o, row + r,
                  static_cast<float>(sums[r][o] - offset) * linear.scale[output + o] * x.scales[row + r]);
    }
}

class Gpt {
public:
    Gpt(const Shape& shape, const Layer* layers, const float* norm, float* cache,
        const float* cosines, const float* sines)
        : s(shape), layers(layers, layers + shape.layers), norm(norm), cache(cache),
          cosines(cosines), sines(sines), dim(shape.hidden / shape.heads) {}

    // x: [rows, hidden] in, final hidden states out. Row r belongs to a slot and a position there;
    // it sees the positions of its slot up to its own, those of the same call included.
    void forward(int rows, const int64_t* slots, const int64_t* positions, float* x, int threads) {
        reserve(rows);
        const int h = s.hidden, wide = 3 * h;
#pragma omp parallel num_threads(threads)
        for (const Layer& layer : layers) {
            const int l = static_cast<int>(&layer - layers.data());
#pragma omp for schedule(static)
            for (int r = 0; r < rows; r++) prepare(x + at(r, h), layer.attention_norm, r);
            product(in, layer.qkv, h, wide, rows,
                    [&](int o, int r, float v) { qkv[at(r, wide) + o] = v; });
#pragma omp for schedule(static) collapse(2)
            for (int r = 0; r < rows; r++)
                for (int head = 0; head < s.heads; head++)
                    rotate(l, r, head, slots[r], static_cast<int>(positions[r]));
#pragma omp for schedule(dynamic) collapse(2)
            for (int r = 0; r < rows; r++)
                for (int head = 0; head < s.heads; head++)
                    attend(l, r, head, slots[r], static_cast<int>(positions[r]));
#pragma omp for schedule(static)
            for (int r = 0; r < rows; r++)
                quantise_row(&attended[at(r, h)], &in.values[at(r, h)], &in.scales[r], h);
            const auto add = [&](int o, int r, float v) { x[at(r, h) + o] += v; };
            product(in, layer.out, h, h, rows, add);
#pragma omp for schedule(static)
            for (int r = 0; r < rows; r++) prepare(x + at(r, h), layer.mlp_norm, r);
            product(in, layer.gate_up, h, 2 * s.inner, rows,
                    [&](int o, int r, float v) { inner[at(r, 2 * s.inner) + o] = v; });
#pragma omp for schedule(static)
            for (int r = 0; r < rows; r++) gate(r);
            product(mid, layer.down, s.inner, h, rows, add);
        }
        for (int r = 0; r < rows; r++) norm_row(x + at(r, h), norm, x + at(r, h), h);
    }

private:
    static size_t at(int row, int width) { return static_cast<size_t>(row) * width; }

    void reserve(int rows) {
        const size_t n = rows;
        if (in.scales.size() < n) {
            in.scales.resize(n);
            mid.scales.resize(n);
            in.values.resize(n * s.hidden);
            mid.values.resize(n * s.inner);
            normed.resize(n * s.hidden);
            qkv.resize(n * 3 * s.hidden);
            attended.resize(n * s.hidden);
            inner.resize(n * 2 * s.inner);
        }
    }

    void prepare(const float* x, const float* weight, int r) {
        norm_row(x, weight, &normed[at(r, s.hidden)], s.hidden);
        quantise_row(&normed[at(r, s.hidden)], &in.values[at(r, s.hidden)], &in.scales[r], s.hidden);
    }

    // SwiGLU of a row, ready for the down projection.
    void gate(int r) {
        float* gates = &inner[at(r, 2 * s.inner)];
        const float* ups = gates + s.inner;
#pragma omp simd
        for (int i = 0; i < s.inner; i++)
            gates[i] = gates[i] / (1.0f + exponential(-gates[i])) * ups[i];
        quantise_row(gates, &mid.values[at(r, s.inner)], &mid.scales[r], s.inner);
    }

    // All outputs of all rows. Threads take chunks of outputs, so that weights are read once, and a
    // chunk stays in the nearest cache while the rows go by. A step is bound by memory, and reads
    // best one row of weights after the other; a prompt is bound by arithmetic, and computes best
    // four rows by two outputs.
    template <typename Store>
    void product(const Quantised& x, const Linear& linear, int n, int outs, int rows, Store store) {
#pragma omp for schedule(dynamic)
        for (int chunk = 0; chunk < outs; chunk += CHUNK) {
            const int end = std::min(outs, chunk + CHUNK);
            int r = 0;
            if (rows > BLOCK)
                for (; r + BLOCK <= rows; r += BLOCK)
                    for (int o = chunk; o < end; o += 2) tile<BLOCK, 2>(x, linear, n, o, r, store);
            for (int o = chunk; o < end && r < rows; o++) switch (rows - r) {
                    case 1: tile<1, 1>(x, linear, n, o, r, store); break;
                    case 2: tile<2, 1>(x, linear, n, o, r, store); break;
                    case 3: tile<3, 1>(x, linear, n, o, r, store); break;
                    default: tile<BLOCK, 1>(x, linear, n, o, r, store);
                }
        }
    }

    // The cache of a head in a slot: keys [context, dim], then values [context, dim].
    float* cached(int layer, int64_t slot, int head) const {
        const size_t index = (static_cast<size_t>(layer) * s.slots + slot) * s.heads + head;
        return cache + index * 2 * s.context * dim;
    }

    // Rotates a head's query in place, and its key into the cache. Rotary pairs lie half a head
    // apart.
    void rotate(int layer, int r, int head, int64_t slot, int position) {
        const int half = dim / 2;
        const float* c = cosines + static_cast<size_t>(position) * half;
        const float* z = sines + static_cast<size_t>(position) * half;
        float* q = &qkv[at(r, 3 * s.hidden)] + head * dim;
        const float* k = q + s.hidden;
        const float* v = k + s.hidden;
        float* keys = cached(layer, slot, head);
        float* key = keys + static_cast<size_t>(position) * dim;
        for (int i = 0; i < half; i++) {
            const float a = q[i], b = q[i + half];
            q[i] = a * c[i] - b * z[i];
            q[i + half] = b * c[i] + a * z[i];
            key[i] = k[i] * c[i] - k[i + half] * z[i];
            key[i + half] = k[i + half] * c[i] + k[i] * z[i];
        }
        std::memcpy(keys + static_cast<size_t>(s.context + position) * dim, v, dim * sizeof(float));
    }

    void attend(int layer, int r, int head, int64_t slot, int position) {
        const float* q = &qkv[at(r, 3 * s.hidden)] + head * dim;
        const float* keys = cached(layer, slot, head);
        const float* values = keys + static_cast<size_t>(s.context) * dim;
        const float factor = 1.0f / std::sqrt(static_cast<float>(dim));
        thread_local std::vector<float> room;
        room.resize(s.context);
        float* scores = room.data();
        const int seen = position + 1;
        float top = -INFINITY;
        for (int p = 0; p < seen; p++) {
            const float* key = keys + static_cast<size_t>(p) * dim;
            float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
            for (int i = 0; i < dim; i++) sum += q[i] * key[i];
            scores[p] = sum * factor;
            top = std::max(top, scores[p]);
        }
        float total = 0.0f;
#pragma omp simd reduction(+ : total)
        for (int p = 0; p < seen; p++) {
            scores[p] = exponential(scores[p] - top);
            total += scores[p];
        }
        float* out = &attended[at(r, s.hidden)] + head * dim;
        for (int i = 0; i < dim; i += LANES) {
            float sums[LANES] = {};
            for (int p = 0; p < seen; p++)
#pragma omp simd
                for (int j = 0; j < LANES; j++)
                    sums[j] += scores[p] * values[static_cast<size_t>(p) * dim + i + j];
            for (int j = 0; j < LANES; j++) out[i + j] = sums[j] / total;
        }
    }

    const Shape s;
    const std::vector<Layer> layers;
    const float* norm;
    float* cache;
    const float* cosines;
    const float* sines;
    const int dim;
    Quantised in, mid;
    std::vector<float> normed, qkv, attended, inner;
};

}  // namespace

extern "C" {

// All pointers stay the caller's and must outlive the result.
void* gpt_new(const Shape* shape, const Layer* layers, const float* norm, float* cache,
              const float* cosines, const float* sines) {
    return new (std::nothrow) Gpt(*shape, layers, norm, cache, cosines, sines);
}

void gpt_forward(void* gpt, int32_t rows, const int64_t* slots, const int64_t* positions, float* x,
                 int32_t threads) {
    static_cast<Gpt*>(gpt)->forward(rows, slots, positions, x, threads);
}

void gpt_delete(void* gpt) { delete static_cast<Gpt*>(gpt); }

}
