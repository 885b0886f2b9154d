// Sends the samples of a circuit's folder to the circuit, and prints the results on the UART.
#include "chop_driver.h"
#include "csr.h"
#include "samples.h"

enum { POLLS = 1000000, END_OF_TRANSMISSION = 4 };

static void put(char character) {
  while (*(volatile uint32_t *)CSR_UART_TXFULL_ADDR) continue;
  *(volatile uint32_t *)CSR_UART_RXTX_ADDR = (uint8_t)character;
}

static void print(const char *text) {
  while (*text) put(*text++);
}

static void print_number(int32_t number) {
  char digits[10];
  uint32_t rest = number < 0 ? -(uint32_t)number : (uint32_t)number, count = 0;
  if (number < 0) put('-');
  do digits[count++] = (char)('0' + rest % 10);
  while (rest /= 10);
  while (count) put(digits[--count]);
}

static void print_result(uint32_t sample, const char *name, const int32_t *codes, uint32_t count) {
  print("sample ");
  print_number((int32_t)sample);
  print(", ");
  print(name);
  print(": class ");
  print_number((int32_t)chop_largest(codes, count));
  print(", codes");
  for (uint32_t k = 0; k < count; k++) {
    put(' ');
    print_number(codes[k]);
  }
  print("\n");
}

int main(void) {
  uint32_t failed = 0;
  chop_reset(CSR_CIRCUIT_RESET_ADDR);
  for (uint32_t sample = 0; sample < SAMPLES; sample++) {
    load_sample(sample);
    enum chop_result result = chop_run(streams, STREAMS, CSR_CIRCUIT_FRAME_ERROR_ADDR, POLLS);
    if (result) {
      print(result == CHOP_TIMEOUT ? "timeout\n" : "tlast is not at the end of a sample\n");
      chop_reset(CSR_CIRCUIT_RESET_ADDR);
      failed = 1;
      continue;
    }
    for (uint32_t k = 0; k < STREAMS; k++)
      if (!streams[k].sent) print_result(sample, names[k], streams[k].received, elements[k]);
  }
  print(failed ? "failed\n" : "done\n");
  put(END_OF_TRANSMISSION);
  return 0;
}
