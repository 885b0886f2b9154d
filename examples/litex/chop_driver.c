#include "chop_driver.h"

#ifndef CHOP_READ  // define both macros for registers that are not in the memory of the program
#define CHOP_READ(address) (*(volatile uint32_t *)(address))
#define CHOP_WRITE(address, value) (*(volatile uint32_t *)(address) = (value))
#endif

static uint32_t element(const struct chop_stream *stream, uint32_t lane) {
  uint32_t place = stream->beat * stream->port->lanes + lane;
  return stream->port->order ? stream->port->order[place] : place;
}

static uint32_t shifted(uint32_t value, int32_t bits) {
  return bits >= 0 ? value << bits : value >> -bits;
}

static uint32_t words(const struct chop_port *port) { return (port->lanes * port->bits + 31) / 32; }

static uint32_t mask(const struct chop_port *port) { return 0xffffffffu >> (32 - port->bits); }

static void send_beat(const struct chop_stream *stream) {
  const struct chop_port *port = stream->port;
  CHOP_WRITE(stream->last, stream->beat + 1 == port->beats);
  // The highest word has the lowest address. The lowest word is the last one and sends the beat.
  for (uint32_t word = words(port); word-- > 0;) {
    uint32_t value = 0, start = 32 * word;
    for (uint32_t lane = start / port->bits;
         lane < port->lanes && lane * port->bits < start + 32; lane++) {
      uint32_t code = (uint32_t)stream->sent[element(stream, lane)] & mask(port);
      value |= shifted(code, (int32_t)(lane * port->bits - start));
    }
    CHOP_WRITE(stream->data + 4 * (words(port) - 1 - word), value);
  }
}

static void receive_beat(const struct chop_stream *stream) {
  const struct chop_port *port = stream->port;
  for (uint32_t lane = 0; lane < port->lanes; lane++) stream->received[element(stream, lane)] = 0;
  // The lowest word is the last one and takes the beat from the circuit.
  for (uint32_t word = words(port); word-- > 0;) {
    uint32_t start = 32 * word;
    uint32_t value = CHOP_READ(stream->data + 4 * (words(port) - 1 - word));
    for (uint32_t lane = start / port->bits;
         lane < port->lanes && lane * port->bits < start + 32; lane++) {
      uint32_t part = shifted(value, (int32_t)(start - lane * port->bits)) & mask(port);
      stream->received[element(stream, lane)] |= (int32_t)part;
    }
  }
  uint32_t sign = 1u << (port->bits - 1);
  for (uint32_t lane = 0; lane < port->lanes; lane++) {
    int32_t *code = &stream->received[element(stream, lane)];
    *code = (int32_t)(((uint32_t)*code ^ sign) - sign);
  }
}

void chop_reset(uintptr_t reset) { CHOP_WRITE(reset, 1); }

enum chop_result chop_run(struct chop_stream *streams, uint32_t count, uintptr_t error,
                          uint32_t polls) {
  for (uint32_t k = 0; k < count; k++) streams[k].beat = 0;
  uint32_t open = count, waited = 0, wrong = 0;
  while (open) {
    if (waited++ == polls) return CHOP_TIMEOUT;
    for (uint32_t k = 0; k < count; k++) {
      struct chop_stream *stream = &streams[k];
      if (stream->beat == stream->port->beats) continue;
      uint32_t status = CHOP_READ(stream->status);
      if (!(status & CHOP_READY)) continue;
      uint32_t is_last = stream->beat + 1 == stream->port->beats;
      if (stream->sent) {
        send_beat(stream);
      } else {
        receive_beat(stream);
        wrong |= is_last != ((status & CHOP_LAST) != 0);
      }
      stream->beat++;
      open -= is_last;
      waited = 0;
    }
  }
  return wrong || CHOP_READ(error) ? CHOP_FRAME : CHOP_OK;
}

uint32_t chop_largest(const int32_t *codes, uint32_t count) {
  uint32_t largest = 0;
  for (uint32_t k = 1; k < count; k++)
    if (codes[k] > codes[largest]) largest = k;
  return largest;
}
