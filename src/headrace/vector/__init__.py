"""Many environments behind Gymnasium's vector interface: in this process, or in workers that cannot hang it."""
