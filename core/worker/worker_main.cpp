#include "yoke/worker.hpp"

int main(int argc, char** argv) {
  return yoke::worker_main(argc, argv);
}
