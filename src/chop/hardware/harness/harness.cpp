// Driver of a Verilated top module with ready/valid streams, loaded through ctypes by worker.py.
//
// ports.h is generated: CHOP_MODEL (class of the model), CHOP_INPUTS(PORT) and CHOP_OUTPUTS(PORT), which apply
// PORT(name) to every port. Beats are little-endian, in whole bytes; unused high bits are zero.
//
// A cycle: both ends of the streams drive their signals, the model settles, beats move where valid
// and ready are high, and the clock rises. Cycle 0 is the first without reset, or the first after
// all weights have been written.

#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "ports.h"
#include "verilated.h"
#if VM_TRACE
#include "verilated_vcd_c.h"
#endif

namespace {

constexpr int kResetCycles = 4;
constexpr int kLoadCycles = 4;  // from the last word of weights to the end of the design's reset
constexpr int64_t kNever = -1;
constexpr int64_t kAlways = 1 << 16;

enum Status : int64_t { kDone = 0, kTimeout = 1, kFinished = 2, kOverdue = 3 };

}  // namespace

// Both structures have the layout of their namesakes in worker.py.
struct Run {
  int64_t pause_every;   // mean cycles from one pause to the next, drawn at random; 0: none
  int64_t pause_cycles;  // of a pause
  int64_t seed;
  int64_t idle_cycles;   // without a beat, after which the run ends
  int64_t most_cycles;   // after which the run ends
  int64_t drain_cycles;  // after the last beat, in which surplus beats are detected
  int64_t cycle;         // out: when it ended
  const char* wave;      // VCD file, or null
};

struct Beats {
  uint8_t* data;       // count * bytes
  int64_t* cycles;     // out, of outputs: when each beat left
  int64_t count;       // to send, or expected
  int64_t bytes;       // of a beat
  int64_t share;       // cycles, of 65536, in which a port without a pause may transfer
  int64_t pace_beats;  // of inputs: maximum number offered evenly in ...
  int64_t pace_cycles; // so many cycles; 0: no limit
  int64_t is_load;     // of inputs: nonzero if the beats are weights, written before cycle 0
  int64_t moved;       // out: number of transfers, surplus ones included
  int64_t violated;    // out, of outputs: first cycle that withdrew or changed a beat, or kNever
};

namespace {

// Marsaglia's 32-bit xorshift.
class Random {
 public:
  explicit Random(uint64_t seed) {
    // The finalizer of splitmix64: seeds and ports that differ by one have unrelated sequences.
    seed += 0x9e3779b97f4a7c15u;
    seed = (seed ^ (seed >> 30)) * 0xbf58476d1ce4e5b9u;
    seed = (seed ^ (seed >> 27)) * 0x94d049bb133111ebu;
    state_ = static_cast<uint32_t>(seed ^ (seed >> 31)) | 1u;
  }
  uint32_t operator()() {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 17;
    state_ ^= state_ << 5;
    return state_;
  }

 private:
  uint32_t state_;
};

// Decides in which cycles one end of a stream moves.
class Stalls {
 public:
  Stalls(const Run& run, int64_t share, int64_t port)
      : random_(static_cast<uint64_t>(run.seed) * 65537u + static_cast<uint64_t>(port)),
        share_(share),
        every_(run.pause_every),
        cycles_(run.pause_cycles) {}

  bool moves() {
    if (paused_ == 0 && every_ > 0 && random_() % every_ == 0) paused_ = cycles_;
    if (paused_ > 0) {
      --paused_;
      return false;
    }
    return share_ >= kAlways || (random_() & (kAlways - 1)) < share_;
  }

 private:
  Random random_;
  int64_t share_, every_, cycles_, paused_ = 0;
};

struct Signals {
  void* data;
  CData *valid, *ready;
};

class Source {
 public:
  Source(Signals signals, Beats& beats, Stalls stalls)
      : signals_(signals), beats_(beats), stalls_(stalls) {}

  void drive(int64_t cycle) {
    if (beats_.moved * beats_.pace_cycles > cycle * beats_.pace_beats) return;
    if (!*signals_.valid && beats_.moved < beats_.count && stalls_.moves()) {
      std::memcpy(signals_.data, beats_.data + beats_.moved * beats_.bytes, beats_.bytes);
      *signals_.valid = 1;
    }
  }
  bool take() {
    taken_ = *signals_.valid && *signals_.ready;
    beats_.moved += taken_;
    return taken_;
  }
  // After the rising edge, as a register would.
  void release() {
    if (!taken_) return;
    *signals_.valid = 0;
    // A design must not read data that are not valid.
    std::memset(signals_.data, 0, beats_.bytes);
  }
  bool done() const { return beats_.moved == beats_.count; }
  bool loads() const { return beats_.is_load && !done(); }

 private:
  Signals signals_;
  Beats& beats_;
  Stalls stalls_;
  bool taken_ = false;
};

class Sink {
 public:
  Sink(Signals signals, Beats& beats, Stalls stalls)
      : signals_(signals), beats_(beats), stalls_(stalls), held_(beats.bytes) {}

  void drive() { *signals_.ready = stalls_.moves(); }
  bool take(int64_t cycle) {
    bool offered = *signals_.valid;
    bool kept = offered && std::memcmp(held_.data(), signals_.data, beats_.bytes) == 0;
    if (stalled_ && !kept && beats_.violated == kNever) beats_.violated = cycle;
    stalled_ = offered && !*signals_.ready;
    if (stalled_) std::memcpy(held_.data(), signals_.data, beats_.bytes);
    if (!offered || stalled_) return false;
    if (beats_.moved < beats_.count) {
      std::memcpy(beats_.data + beats_.moved * beats_.bytes, signals_.data, beats_.bytes);
      beats_.cycles[beats_.moved] = cycle;
    }
    ++beats_.moved;
    return true;
  }
  bool done() const { return beats_.moved >= beats_.count; }

 private:
  Signals signals_;
  Beats& beats_;
  Stalls stalls_;
  std::vector<uint8_t> held_;
  bool stalled_ = false;
};

class Bench {
 public:
  Bench(Run& run, Beats* inputs, Beats* outputs) : run_(run), model_(&context_) {
#if VM_TRACE
    context_.traceEverOn(true);
#endif
    int64_t port = 0;
    (void)inputs;  // a top without inputs
#define PORT(name)                                                                           \
  sources_.emplace_back(Signals{&model_.name##_i, &model_.name##_valid_i, &model_.name##_ready_o}, \
                        *inputs, Stalls(run, inputs->share, port++)), ++inputs;
    CHOP_INPUTS(PORT)
#undef PORT
#define PORT(name)                                                                           \
  sinks_.emplace_back(Signals{&model_.name##_o, &model_.name##_valid_o, &model_.name##_ready_i}, \
                      *outputs, Stalls(run, outputs->share, port++)), ++outputs;
    CHOP_OUTPUTS(PORT)
#undef PORT
  }

  Status run(uint8_t* violated, int64_t bytes, uint8_t* fills, int64_t fill_bytes) {
    open_wave();
    reset();
    Status status = cycles();
    std::memcpy(violated, &model_.violated_o, bytes);
    std::memcpy(fills, &model_.fills_o, fill_bytes);
    model_.final();
#if VM_TRACE
    if (wave_) wave_->close();
#endif
    return status;
  }

 private:
  void open_wave() {
#if VM_TRACE
    if (!run_.wave) return;
    wave_ = std::make_unique<VerilatedVcdC>();
    model_.trace(wave_.get(), 99);
    wave_->open(run_.wave);
#endif
  }

  void settle() {
    model_.eval();
#if VM_TRACE
    if (wave_) wave_->dump(context_.time());
#endif
    context_.timeInc(1);
  }

  void tick() {
    model_.clk_i = 1;
    settle();
    model_.clk_i = 0;
  }

  void reset() {
    model_.clk_i = 0;
    model_.rst_ni = 0;
    for (int i = 0; i < kResetCycles; ++i) {
      settle();
      tick();
    }
    model_.rst_ni = 1;
  }

  Status cycles() {
    int64_t idle = 0, rest = 0;
    for (int64_t& cycle = run_.cycle = 0; !context_.gotFinish(); cycle += counts()) {
      if (done() && rest++ == run_.drain_cycles) return kDone;
      for (Source& source : sources_) source.drive(cycle);
      for (Sink& sink : sinks_) sink.drive();
      settle();
      bool moved = false;
      for (Source& source : sources_) moved |= source.take();
      for (Sink& sink : sinks_) moved |= sink.take(cycle);
      idle = moved ? 0 : idle + 1;
      if (idle > run_.idle_cycles && !done()) return kTimeout;
      if (cycle >= run_.most_cycles) return kOverdue;
      tick();
      for (Source& source : sources_) source.release();
    }
    return kFinished;
  }

  // Cycles are counted from the end of the loading.
  bool counts() {
    for (const Source& source : sources_)
      if (source.loads()) {
        waits_ = kLoadCycles;
        return false;
      }
    if (waits_ == 0) return true;
    --waits_;
    return false;
  }

  bool done() const {
    for (const Source& source : sources_)
      if (!source.done()) return false;
    for (const Sink& sink : sinks_)
      if (!sink.done()) return false;
    return true;
  }

  Run& run_;
  VerilatedContext context_;
  CHOP_MODEL model_;
  std::vector<Source> sources_;
  std::vector<Sink> sinks_;
  int waits_ = 0;
#if VM_TRACE
  std::unique_ptr<VerilatedVcdC> wave_;
#endif
};

}  // namespace

// Sends all inputs and receives all outputs; `violated` gets the sticky bits of inner streams, `fills`
// the most beats that each FIFO held, 32 bits each.
extern "C" int64_t chop_run(Run* run, Beats* inputs, Beats* outputs, uint8_t* violated,
                            int64_t violated_bytes, uint8_t* fills, int64_t fill_bytes) {
  return Bench(*run, inputs, outputs).run(violated, violated_bytes, fills, fill_bytes);
}
