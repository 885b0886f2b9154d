// Clock of a SoC in Verilator. Prints what its UART sends, until an end of transmission (code 4).
#include <cstdio>
#include <cstdlib>

#include "Vsoc.h"
#include "verilated.h"

double sc_time_stamp() { return 0; }

int main(int, char **arguments) {
  const long long limit = std::atoll(arguments[1]);
  Vsoc soc;
  soc.serial_source_ready = 1;
  for (long long cycle = 0; cycle < limit; cycle++) {
    soc.sys_rst = cycle < 8;
    soc.sys_clk = 0;
    soc.eval();
    if (soc.serial_source_valid) {
      if (soc.serial_source_data == 4) {
        std::printf("%lld cycles\n", cycle);
        return 0;
      }
      std::putchar(soc.serial_source_data);
    }
    soc.sys_clk = 1;
    soc.eval();
  }
  std::printf("no end after %lld cycles\n", limit);
  return 1;
}
