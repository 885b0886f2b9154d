// Driver of a circuit behind the registers of `CircuitRegisters` in soc.py. chop_circuit.h is the
// header that chop emit writes for the circuit.
#ifndef CHOP_DRIVER_H
#define CHOP_DRIVER_H

#include "chop_circuit.h"

enum { CHOP_READY = 1, CHOP_LAST = 2 };  // bits of a status register

enum chop_result {
  CHOP_OK,
  CHOP_TIMEOUT,  // a stream did not move within `polls` rounds
  CHOP_FRAME     // tlast is not at the last beat of a sample, at an input or an output
};

// A port and its registers. Codes are those of one sample, in row-major order.
struct chop_stream {
  const struct chop_port *port;
  uintptr_t data;       // of the highest word; the other words follow
  uintptr_t status;     // CHOP_READY: a beat can be written or read; CHOP_LAST: tlast of an output
  uintptr_t last;       // tlast of an input
  const int32_t *sent;  // codes of an input; 0 for an output
  int32_t *received;    // codes of an output
  uint32_t beat;        // beats that have moved
};

// Resets a circuit. The hardware holds its reset for long enough.
void chop_reset(uintptr_t reset);

// Sends one sample and receives its results. Inputs and outputs take turns, so that a full output
// cannot block an input. `error` is the address of the circuit's frame_error.
enum chop_result chop_run(struct chop_stream *streams, uint32_t count, uintptr_t error,
                          uint32_t polls);

// Index of the largest code: the predicted class, if all codes have the same value of a code.
uint32_t chop_largest(const int32_t *codes, uint32_t count);

#endif
